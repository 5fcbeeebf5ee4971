"""A model that is built on the meta device, sharded, and filled from the weights in the path WEIGHTS.

    meta_start.py WEIGHTS [--plain] [--buffer] [--new] [--rows N] [--width N] [--steps N] [--stop-at STEP]

Each rank writes by how many bytes its peak memory has grown when the session is open to RUN_DIR.RANK.grown, and rank 0
the tensors then to RUN_DIR.filled.safetensors. --plain does not shard the model, --buffer gives it a buffer that no
file holds, and --new gives no weights.
"""

import argparse
import os
import resource
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.fsdp import fully_shard

import slipway


class Tied(nn.Module):
    """A model with a tied weight, a frozen layer, and a buffer."""

    def __init__(self, rows=11, width=8, layers=3):
        super().__init__()
        self.embedding = nn.Embedding(rows, width)
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        self.register_buffer("scale", torch.ones(()))
        self.head = nn.Linear(width, rows, bias=False)
        self.head.weight = self.embedding.weight
        self.layers[0].requires_grad_(False)

    def forward(self, numbers):
        return self.head(self.layers(self.embedding(numbers)) * self.scale)


def write_whole(tensors, path):
    """Write the tensors, whole, to a file of rank 0; all ranks must call this."""
    whole = {name: each.full_tensor() if hasattr(each, "full_tensor") else each for name, each in tensors.items()}
    if dist.get_rank() == 0:
        save_file({name: each.clone() for name, each in whole.items()}, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--buffer", action="store_true")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--rows", type=int, default=11)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--stop-at", type=int)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    with torch.device("meta"):
        model = Tied(args.rows, args.width)
        if args.buffer:
            model.register_buffer("mask", torch.ones(3), persistent=False)
    if not args.plain:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    weights = None if args.new else args.weights
    with slipway.Session(model=model, optimizer=optimizer, weights=weights, checkpoint_steps=1) as session:
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        Path(f"{os.environ['RUN_DIR']}.{dist.get_rank()}.grown").write_text(str(grown * 1024))
        if args.steps:
            write_whole(model.state_dict(), f"{os.environ['RUN_DIR']}.filled.safetensors")
        for step in session.steps(args.steps):
            numbers = torch.arange(6) + dist.get_rank()
            loss = nn.functional.cross_entropy(model(numbers), numbers % 5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0 and step + 1 == args.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
