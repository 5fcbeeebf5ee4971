"""Communication between a run's ranks: torch.distributed, Horovod, or a single rank."""
