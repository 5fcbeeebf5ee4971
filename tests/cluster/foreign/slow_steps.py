"""Training with ``slipway.Session`` whose steps take time but no computation.

Where STOPWATCH names a file, rank 0 notes in it what begins when: lines WHAT SECONDS_SINCE_1970.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from slipway import Sampler, Session

EPOCHS, STEP_SECONDS, EVALUATION_SECONDS = 9, 0.3, 2


def note(what: str) -> None:
    if dist.get_rank() == 0 and (path := os.environ.get("STOPWATCH")):
        with Path(path).open("a") as file:
            file.write(f"{what} {time.time():.3f}\n")


dist.init_process_group("gloo", timeout=timedelta(seconds=60))
torch.manual_seed(0)
inputs = torch.randn(320, 8)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=8, sampler=Sampler(data))
model = DistributedDataParallel(nn.Linear(8, 1), find_unused_parameters=True)  # makes resuming exact
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

with Session(model=model, optimizer=optimizer, log_interval=1) as session:
    note("opened")
    for epoch in session.epochs(EPOCHS):
        note("training")
        for batch, target in session.batches(loader):
            loss = nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(STEP_SECONDS)
            session.log(loss=loss)
        note("evaluation")
        time.sleep(EVALUATION_SECONDS)
        session.metrics(seen=epoch + 1)
note("closed")
