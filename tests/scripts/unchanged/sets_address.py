"""Sets the rendezvous address, and reads its rank from Slurm, as scripts started by `srun python` do."""

import gc
import os

import torch
import torch.distributed as dist

os.environ["MASTER_ADDR"] = "localhost"
os.environ["MASTER_PORT"] = "12355"
dist.init_process_group("gloo", rank=int(os.environ["SLURM_PROCID"]), world_size=int(os.environ["SLURM_NTASKS"]))
total = torch.ones(1)
dist.all_reduce(total)
print(f"joined as {dist.get_rank()} of {int(total)}", flush=True)
gc.collect()
dist.destroy_process_group()
