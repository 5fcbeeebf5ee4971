"""A plain Horovod script."""

import horovod.torch as hvd
import torch

hvd.init()
print(f"joined as {hvd.rank()} of {int(hvd.allreduce(torch.ones(1), op=hvd.Sum))}", flush=True)
