"""A sharded language model that uses one more feature of FSDP, in a Session.

    sharded_features.py FEATURE... [--whole] [--stop-at STEP]

With --whole the script first trains an equal model without interruption, in RUN_DIR.whole. At the step of --stop-at
rank 0 gets SIGTERM. At the opening and after each step rank 0 appends a digest of the whole state to FOLDER.states.
"""

import argparse
import gc
import hashlib
import json
import os
import signal
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

import slipway

WIDTH, WORDS, SAMPLES = 12, 17, 96
FEATURES = {
    "lora",  # frozen weights, trained adapters
    "offload",  # CPUOffloadPolicy
    "compile",  # block.compile() before fully_shard
    "compile-sharded",  # block.compile() after fully_shard
    "compile-wrapper",  # torch.compile(block), which adds a prefix to names, before fully_shard
    "checkpoint",  # torch.utils.checkpoint
    "checkpoint-wrapper",  # checkpoint_wrapper
    "bf16",  # MixedPrecisionPolicy
    "accumulate",  # a step every second batch; gradients are reduced in it
    "accumulate-reduced",  # gradients are reduced in each batch
    "tied",  # the last layer has the weights of the first
}


class Adapted(nn.Module):
    """A frozen linear layer and its trained low-rank adapter."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 3, bias=False)
        self.up = nn.Linear(3, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, values):
        return self.base(values) + self.up(self.down(values))


class Block(nn.Module):
    """A residual block."""

    def __init__(self, features):
        super().__init__()
        layer = (lambda *sizes: Adapted(nn.Linear(*sizes))) if "lora" in features else nn.Linear
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Sequential(layer(WIDTH, 23), nn.GELU(), nn.Dropout(0.1), layer(23, WIDTH))
        self.recomputes = "checkpoint" in features

    def forward(self, values):
        run = partial(checkpoint, self.inner, use_reentrant=False) if self.recomputes else self.inner
        return values + run(self.norm(values))


class Language(nn.Module):
    """Predicts the next word from one word."""

    def __init__(self, features):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(features) for _ in range(2))
        self.last = nn.Linear(WIDTH, WORDS, bias=False)
        if "tied" in features:
            self.last.weight = self.words.weight
        if "lora" in features:
            for module in (self.words, self.last, *(block.norm for block in self.blocks)):
                module.requires_grad_(False)

    def forward(self, words):
        values = self.words(words)
        for block in self.blocks:
            values = block(values)
        return self.last(values)


def sharded(features):
    """Return the model on all ranks."""
    torch.manual_seed(0)
    model = Language(features)
    options = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
    if "offload" in features:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    if "bf16" in features:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if "checkpoint-wrapper" in features:
        model.blocks = nn.ModuleList(map(checkpoint_wrapper, model.blocks))
    if "compile-wrapper" in features:
        model.blocks = nn.ModuleList(torch.compile(block, backend="aot_eager") for block in model.blocks)
    for block in model.blocks:
        if "compile" in features:
            block.compile(backend="eager")
        fully_shard(block, **options)
        if "compile-sharded" in features:
            block.compile(backend="aot_eager")
    return fully_shard(model, **options)


def train(features, folder, stop=None):
    model = sharded(features)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    torch.manual_seed(1)
    samples = [(torch.randint(WORDS, (5,)), torch.randint(WORDS, (5,))) for _ in range(SAMPLES)]
    loader = torch.utils.data.DataLoader(samples, batch_size=8, sampler=slipway.Sampler(samples))
    states = Path(f"{folder}.states")
    with slipway.Session(model=model, optimizer=optimizer, folder=folder, seed=3) as session:
        note(states, "opened", session.step, digest(model, optimizer))
        for _ in session.epochs(1):
            for batch, (words, targets) in enumerate(session.batches(loader), session.batch):
                steps = batch % 2 == 1 or not any(each.startswith("accumulate") for each in features)
                if "accumulate" in features:
                    model.set_requires_gradient_sync(steps)
                nn.functional.cross_entropy(model(words).float().flatten(0, 1), targets.flatten()).backward()
                if not steps:
                    continue
                optimizer.step()
                optimizer.zero_grad()
                note(states, "stepped", session.step + 1, digest(model, optimizer))
                if session.step + 1 == stop and dist.get_rank() == 0:
                    os.kill(os.getpid(), signal.SIGTERM)


def digest(model, optimizer):
    """Return a digest of all parameters and moments; each rank has a part of their rows."""
    tensors = [*model.state_dict().values()]
    tensors += [state[name] for state in optimizer.state_dict()["state"].values() for name in sorted(state)]
    by_rank = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, [(each.to_local() if is_part(each) else each).detach() for each in tensors])
    found = hashlib.sha256()
    for tensor, *parts in zip(tensors, *by_rank, strict=True):
        for part in parts if is_part(tensor) else parts[:1]:
            found.update(part.contiguous().numpy().tobytes())
    return found.hexdigest()


def is_part(tensor):
    return isinstance(tensor, DTensor)


def note(path, *values):
    if dist.get_rank() == 0:
        with path.open("a") as file:
            file.write(json.dumps(values) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("features", nargs="+", choices=FEATURES)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--stop-at", type=int)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    folder = os.environ["RUN_DIR"]
    if args.whole:
        train(args.features, f"{folder}.whole")
    train(args.features, folder, args.stop_at)
    gc.collect()  # without this, gloo ranks of torch 2.13 sometimes abort at exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
