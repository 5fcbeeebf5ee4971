"""Only rank 0 validates with session.batches, which would never end."""

import os

import torch
import torch.distributed as dist

from slipway import Session

dist.init_process_group("gloo")
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with Session(model=model, optimizer=optimizer, timeout=60) as session:
    for _ in session.epochs(3):
        for _ in session.batches(range(4)):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            dist.barrier()
        if session.is_root == (os.environ["ALONE"] == "root"):
            for _ in session.batches(range(2)):
                pass
