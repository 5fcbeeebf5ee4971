"""Communication between the ranks of a run: over torch.distributed, over Horovod, or none."""
