"""Reads rank and cores from the variables of Slurm and torchrun, as scripts started by `srun` do."""

import gc
import os

import torch
import torch.distributed as dist

rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["WORLD_SIZE"])
local_rank = rank % int(os.environ["GPUS_PER_NODE"])
threads = int(os.environ["SLURM_CPUS_PER_TASK"])
dist.init_process_group("gloo", rank=rank, world_size=size)
total = torch.ones(1)
dist.all_reduce(total)
print(f"joined as {dist.get_rank()} of {int(total)}, GPU {local_rank}, {threads} threads", flush=True)
gc.collect()
dist.destroy_process_group()
