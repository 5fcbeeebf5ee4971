"""Sum a tensor over torchrun's ranks with gloo, and check the result. Part of smoke.sh."""

import gc

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
values = torch.full((1 << 18,), float(rank + 1))
dist.all_reduce(values)
assert torch.all(values == size * (size + 1) / 2), f"rank {rank} of {size} got {values[0]}"
if rank == 0:
    print(f"smoke: all-reduce over {size} ranks is right")
gc.collect()  # torch 2.13 may abort at exit if the group is destroyed before the objects that refer to it
dist.destroy_process_group()
