"""Strategies to train a model on many ranks: DDP, Horovod, one process, or pipeline stages on several devices."""
