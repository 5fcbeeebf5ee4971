"""Training data of a rank: order, sampler, loader and feed; the data sets are in ``sets``."""
