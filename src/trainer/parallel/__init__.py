"""How a model is trained on many ranks: DDP, Horovod, one process, or stages on several devices."""
