"""Ranks with different state: noise, a codebook that DDP syncs at times, a loss meter, a module's deque.

    apart.py [BATCH]

BATCH is the number of the batch, over all attempts, in which rank 0 gets SIGTERM. Each rank prints a digest at the end.
"""

import hashlib
import os
import random
import signal
import sys
from collections import deque

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slipway import Session
from slipway.dist.collectives import as_bytes


class Quantizer(nn.Module):
    """A layer with a codebook that follows its inputs, like that of a VQ-VAE, and noise that differs by rank."""

    def __init__(self, rank):
        super().__init__()
        self.noise, self.recent = random.Random(rank), deque(maxlen=3)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("codebook", torch.zeros(4))

    def forward(self, inputs):
        outputs = self.layer(inputs) + self.noise.gauss(0, 0.1) + sum(self.recent)
        if self.training:
            self.codebook.lerp_(outputs.detach().mean(0), 0.5)
            self.recent.append(outputs.mean().item() / 4)
        return (outputs - self.codebook).square().mean()


class Meter:
    """The losses of this rank."""

    def __init__(self):
        self.losses = []

    def state_dict(self):
        return {"losses": [*self.losses]}

    def load_state_dict(self, state):
        self.losses = [*state["losses"]]


def main(stop):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    noise = torch.Generator().manual_seed(100 + rank)
    model = DistributedDataParallel(Quantizer(rank))
    counts = nn.Module()
    counts.register_buffer("seen", torch.zeros(2, dtype=torch.uint16))
    meter = Meter()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    extra = {"noise": noise, "meter": meter, "counts": counts}
    with Session(model=model, optimizer=optimizer, extra=extra, checkpoint_steps=1) as session:
        for _ in session.epochs(3):
            for batch in session.batches(range(6)):
                if rank == 0 and session.epoch * 6 + batch == stop:
                    os.kill(os.getpid(), signal.SIGTERM)
                inputs = torch.randn(3, 4, generator=noise)
                optimizer.zero_grad()
                loss = model(inputs)
                loss.backward()
                optimizer.step()
                meter.losses.append(loss.item())
                counts.seen = torch.tensor([len(meter.losses), 60000 + rank], dtype=torch.uint16)
            model.eval()
            with torch.no_grad():  # after this, the next forward pass does not synchronize the codebook
                meter.losses.append(model(torch.ones(2, 4)).item())
            with torch.no_grad():
                model.module.codebook.add_(rank)
            model.train()
    total = hashlib.sha256(repr([meter.losses, model.module.recent]).encode())
    for tensor in (*model.state_dict().values(), counts.seen, noise.get_state()):
        total.update(as_bytes(tensor).numpy().tobytes())
    print(f"digest of rank {rank}: {total.hexdigest()}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else -1)
