"""Joins the other ranks only if an option is set, as scripts for `torch.distributed.launch` do."""

import argparse
import gc

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
total = torch.ones(1)
rank = 0
if args.local_rank != -1:
    dist.init_process_group("gloo")
    dist.all_reduce(total)
    rank = dist.get_rank()
    gc.collect()
    dist.destroy_process_group()
print(f"joined as {rank} of {int(total)}", flush=True)
