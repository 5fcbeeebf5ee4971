"""Writes the ids of the samples that reach the model, with slipway.Sampler, for changing numbers of ranks."""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from slipway import Sampler, Session

SAMPLES = 203
SEEN = []
"""Of this attempt; not an attribute of the model, because a session would restore that."""


class Recording(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, ids):
        SEEN.append(ids.flatten().int().tolist())
        return self.layer(ids / SAMPLES)


def main():
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    wrapped = Recording()
    if dist.is_initialized():
        wrapped = DistributedDataParallel(wrapped)
    data = TensorDataset(torch.arange(float(SAMPLES))[:, None])
    loader = DataLoader(data, 4, sampler=Sampler(data), num_workers=2)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    stop_after = int(os.environ.get("STOP_AFTER", "-1"))
    with Session(model=wrapped, optimizer=optimizer) as session:
        record = Path(session.folder, f"seen.{os.getpid()}.json")
        first = session.step
        for _ in session.epochs(1):
            for (ids,) in session.batches(loader, device="cpu"):
                optimizer.zero_grad()
                wrapped(ids).sum().backward()
                optimizer.step()
                time.sleep(0.1)  # STOP is checked once per second
                record.write_text(json.dumps([first, SEEN]))
                if session.step - first == stop_after:
                    Path(session.folder, "STOP").write_text("user")
                    stop_after = -1


if __name__ == "__main__":
    main()
