"""A model that is sharded in one of several ways, in a Session.

    sharded.py [--kind fsdp|hsdp|tp|ddp|mixed] [--samples N] [--epochs N] [--stop-at STEP] [--disk-full-at STEP]
               [--without-mesh]

At the opening and after each step the ranks append lines to RUN_DIR's neighbours: rank 0 a digest of the whole state to
RUN_DIR.states, and each rank its sample numbers to RUN_DIR.samples, and the bytes of tensors that it has read, to
verify and to load the checkpoint, to RUN_DIR.read. At the step of --stop-at rank 0 gets SIGTERM.
From that of --disk-full-at on, the last rank can write no file. Sizes are such that most of 3, 4 or 8 ranks get unequal
parts, and some none. The best checkpoint is that of the first epoch.
"""

import argparse
import hashlib
import json
import os
import resource
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import slipway
from slipway.checkpoint.saved_tensors import SavedTensors


def shard(model, kind):
    """Return the model, sharded or replicated, and the mesh that divides the samples; None for all ranks."""
    size = dist.get_world_size()
    if kind == "ddp":
        return DistributedDataParallel(model), None
    shape = {"fsdp": (size,), "mixed": (size,), "hsdp": (2, size // 2), "tp": (size // 2, 2)}[kind]
    names = {"hsdp": ("replicate", "shard"), "tp": ("data", "tensor")}.get(kind, ("shard",))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if kind == "tp":
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = mesh["data"]
    if kind == "mixed":
        model[4].requires_grad_(False)  # stays a plain tensor on each rank
        for number in (0, 2, 5):
            fully_shard(model[number], mesh=mesh)
        return model, None
    for layer in model:
        if [*layer.parameters()]:
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh), mesh


def state_digest(model, optimizer):
    """Return a digest of all parameters and moments, whole; all ranks must call this."""
    tensors = [*model.state_dict().values()]
    for state in optimizer.state_dict()["state"].values():
        tensors += [state[name] for name in sorted(state)]
    whole = [tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in tensors]
    return hashlib.sha256(b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in whole)).hexdigest()


def readers():
    """Return a list of all readers of checkpoints that will be created."""
    found, initialize = [], SavedTensors.__init__

    def register(self, *arguments):
        found.append(self)
        initialize(self, *arguments)

    SavedTensors.__init__ = register
    return found


def append(suffix, *values):
    with Path(f"{os.environ['RUN_DIR']}.{suffix}").open("a") as file:
        file.write(json.dumps(values) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="fsdp")
    parser.add_argument("--samples", type=int, default=97)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--stop-at", type=int)
    parser.add_argument("--disk-full-at", type=int)
    parser.add_argument("--without-mesh", action="store_true")
    args = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 23), nn.Dropout(0.1), nn.LayerNorm(23), nn.Linear(23, 3)
    model, mesh = shard(nn.Sequential(*layers), args.kind)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    samples = [(number, torch.randn(10), number % 3) for number in range(args.samples)]
    sampler = slipway.Sampler(samples, mesh=None if args.without_mesh else mesh)
    loader = torch.utils.data.DataLoader(samples, batch_size=4, sampler=sampler)
    found = readers()
    with slipway.Session(
        model=model, optimizer=optimizer, scheduler=scheduler, checkpoint_steps=1, best="loss", minimize=True
    ) as session:
        append("read", session.step, rank, sum(reader.bytes_read for reader in found))
        digest = state_digest(model, optimizer)
        if rank == 0:
            append("states", "opened", session.step, digest)
        for epoch in session.epochs(args.epochs):
            for numbers, inputs, targets in session.batches(loader):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()
                optimizer.step()
                session.log(loss=loss.item())
                digest = state_digest(model, optimizer)
                if args.kind != "tp" or rank % 2 == 0:  # the other rank of a pair has the same samples
                    append("samples", epoch, session.step, numbers.tolist())
                if session.step + 1 == args.disk_full_at and rank == dist.get_world_size() - 1:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
                if rank == 0:
                    append("states", "stepped", session.step + 1, digest)
                    if session.step + 1 == args.stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
            scheduler.step()
            session.metrics(loss=epoch)
    if rank == 0:
        print(f"trained {session.step} steps: {digest}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
