"""Print each rank's view of its job as a JSON line, with the world that it really formed."""

import gc
import json
import os
import sys


def world():
    """Join the launcher's world and return its size, this rank and the backend."""
    if "HOROVOD_SIZE" in os.environ or "TRAINER_MPI" in os.environ:
        import horovod.torch as hvd
        import torch

        hvd.init()
        return int(hvd.allreduce(torch.ones(1), op=hvd.Sum).item()), hvd.rank(), "horovod"
    import torch
    import torch.distributed as dist

    if os.environ["TRAINER_WORLD_SIZE"] == "1" and "RANK" not in os.environ:
        return 1, 0, "single"
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    rank = dist.get_rank()
    gc.collect()  # otherwise ranks of torch 2.13 sometimes abort at exit with Gloo
    dist.destroy_process_group()
    return int(total.item()), rank, "ddp"


size, rank, backend = world()
seen = {"rank": rank, "world": size, "backend": backend, "node": os.uname().nodename}
seen["container"] = "APPTAINER_CONTAINER" in os.environ
seen["threads"], seen["gpus"] = os.environ["OMP_NUM_THREADS"], os.environ.get("CUDA_VISIBLE_DEVICES")
sys.stdout.write(f"REPORT {json.dumps(seen)}\n")
sys.stdout.flush()
