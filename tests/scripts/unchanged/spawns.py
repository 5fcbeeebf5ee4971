"""Starts two ranks itself, as scripts for one node do."""

import gc
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, ranks):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12356"
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"joined as {rank} of {int(total)}", flush=True)
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
