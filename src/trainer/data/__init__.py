"""The training data of a rank: order, sampler, loader, feed; the data sets are in ``sets``."""
