"""Training data of a rank: epochs, micro-batches, loader and batches; the data sets are in ``sets``."""
