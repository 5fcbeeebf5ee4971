"""A mistake with a sharded model in a Session: each function below contains one.

    sharded_misuse.py MISTAKE [EPOCHS]

Mistakes whose name begins with ``resumed`` are made when the run in RUN_DIR continues, which ``good`` has begun.
"""

import copy
import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler

from slipway import Sampler, Session

MISTAKES = {}
EPOCHS = int(sys.argv[2]) if len(sys.argv) > 2 else 1


def mistake(function):
    MISTAKES[function.__name__] = function
    return function


def plain(width=6, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 4))


def mesh(*shape):
    """Return a mesh of all ranks; of two dimensions, for replicas."""
    return init_device_mesh(
        "cpu", shape or (dist.get_world_size(),), mesh_dim_names=("replicate", "shard")[-len(shape or [1]) :]
    )


def sharded(width=6, seed=0):
    return fully_shard(plain(width, seed), mesh=mesh())


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def dataset():
    torch.manual_seed(1)
    return torch.randn(48, 8)


def loader(sampler=Sampler, **options):
    samples = dataset()
    return DataLoader(samples, batch_size=4, sampler=sampler(samples, **options))


def step(model, optimizer, batch):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def train(model, optimizer, *, data=None, body=step, after=lambda _session: None, **options):
    with Session(model=model, optimizer=optimizer, checkpoint_steps=1, **options) as session:
        for _ in session.epochs(EPOCHS):
            for batch in session.batches(data or loader()):
                body(model, optimizer, batch)
            after(session)


def good():
    model = sharded()
    train(model, adam(model))


# Ways to shard that a session cannot save.


@mistake
def fsdp1():
    model = FullyShardedDataParallel(plain(), device_id=torch.device("cpu"))
    train(model, adam(model))


@mistake
def deepspeed():
    engine = type("DeepSpeedEngine", (nn.Sequential,), {})(*plain())
    train(engine, adam(engine))


@mistake
def zero():
    model = DistributedDataParallel(plain())
    train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01))


@mistake
def ddp_around():
    model = DistributedDataParallel(sharded())
    train(model, adam(model))


# The order of fully_shard, optimizer and Session.


@mistake
def optimizer_before_sharding():
    model = plain()
    optimizer = adam(model)
    fully_shard(model, mesh=mesh())
    train(model, optimizer)


@mistake
def optimizer_of_another_model():
    train(sharded(), adam(sharded()))


@mistake
def sharded_within_session():
    model = plain()
    optimizer = adam(model)
    with Session(model=model, optimizer=optimizer, checkpoint_steps=1) as session:
        fully_shard(model, mesh=mesh())
        for _ in session.epochs(EPOCHS):
            for batch in session.batches(loader()):
                step(model, optimizer, batch)


@mistake
def sharded_within_loop():
    model = plain()
    optimizer = adam(model)
    with Session(model=model, optimizer=optimizer, checkpoint_steps=1) as session:
        for _ in session.epochs(EPOCHS):
            for number, batch in enumerate(session.batches(loader())):
                if number == 2:
                    fully_shard(model, mesh=mesh())
                step(model, optimizer, batch)


@mistake
def forward_before_session():  # torch then keeps the root's parameters as plain tensors
    model = sharded()
    optimizer = adam(model)
    model(torch.ones(1, 8))
    train(model, optimizer)


@mistake
def two_sessions():
    model, other = sharded(), sharded()
    with Session(model=model, optimizer=adam(model)):
        train(other, adam(other))


# Ranks that differ.


@mistake
def sharded_on_one_rank():
    model, whole = plain(), mesh()
    if dist.get_rank() == 0:
        fully_shard(model, mesh=whole)
    train(model, adam(model))


@mistake
def other_mesh_on_one_rank():
    whole, grid = mesh(), mesh(2, 1)
    model = fully_shard(plain(), mesh=grid if dist.get_rank() else whole)
    train(model, adam(model))


@mistake
def other_parts_sharded_on_one_rank():
    whole, model = mesh(), plain()
    if dist.get_rank():
        fully_shard(model[0], mesh=whole)
    fully_shard(model, mesh=whole)
    train(model, adam(model))


@mistake
def other_model_on_one_rank():
    model = sharded(width=6 + 2 * dist.get_rank())
    train(model, adam(model))


@mistake
def other_seed_on_replicas():
    model = fully_shard(plain(seed=dist.get_rank()), mesh=mesh(2, 1))
    train(model, adam(model))


@mistake
def root_not_sharded():
    model = plain(seed=dist.get_rank())
    fully_shard(model[0], mesh=mesh())
    train(model, adam(model))


@mistake
def evaluated_on_one_rank():
    model = sharded()

    def evaluate(session):
        if session.is_root:
            with torch.no_grad():
                model.eval()(torch.ones(1, 8))

    train(model, adam(model), after=evaluate)


@mistake
def evaluated_on_one_rank_before_training():
    model = sharded()
    optimizer = adam(model)
    with Session(model=model, optimizer=optimizer) as session:
        if session.is_root:
            model(torch.ones(1, 8))
        for _ in session.epochs(EPOCHS):
            for batch in session.batches(loader()):
                step(model, optimizer, batch)


@mistake
def evaluated_on_one_rank_after_training():
    model = sharded()
    optimizer = adam(model)
    with Session(model=model, optimizer=optimizer, best="loss") as session:
        for epoch in session.epochs(EPOCHS):
            for batch in session.batches(loader()):
                step(model, optimizer, batch)
            session.metrics(loss=epoch)
        session.load_best()
        if session.is_root:
            model(torch.ones(1, 8))


@mistake
def evaluated_more_often_on_one_rank():
    model, whole = plain(), mesh()
    for part in (model[0], model):  # torch keeps the parameters of the root after a forward pass
        fully_shard(part, mesh=whole)

    def evaluate(session):
        for _ in range(3 + session.is_root):
            with torch.no_grad():
                model.eval()(torch.ones(1, 8))

    train(model, adam(model), after=evaluate)


@mistake
def validated_on_one_rank():
    model = sharded()

    def validate(session):
        if session.is_root:
            for batch in session.batches([torch.ones(4, 8)]):
                model(batch)

    train(model, adam(model), after=validate)


@mistake
def batches_uneven():
    model = sharded()
    train(model, adam(model), data=[torch.ones(4, 8)] * (3 + 3 * dist.get_rank()))


# Tensor parallelism and samples.


def tensor_parallel():
    model, grid = plain(), init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, grid["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return fully_shard(model, mesh=grid["data"])


@mistake
def sampler_of_all_ranks():
    model = tensor_parallel()
    train(model, adam(model))


@mistake
def torch_sampler_of_all_ranks():
    model = tensor_parallel()
    train(model, adam(model), data=loader(DistributedSampler))


@mistake
def torch_sampler_of_one_replica():
    model = sharded()
    train(model, adam(model), data=loader(DistributedSampler, num_replicas=1, rank=0))


# State that a checkpoint cannot hold.


class Averages:
    """Moving averages of parameters, as DTensors."""

    def __init__(self, model):
        self.values = [parameter.detach().clone() for parameter in model.parameters()]

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = state["values"]


@mistake
def averages_in_extra():
    model = sharded()
    train(model, adam(model), extra=Averages(model))


@mistake
def average_by_deepcopy():
    model = sharded()
    train(model, adam(model), extra=copy.deepcopy(model))


@mistake
def averaged_model_of_sharded():
    model = sharded()
    train(model, adam(model), extra=AveragedModel(model))


@mistake
def gradients_never_reduced():
    model = sharded()
    model.set_requires_gradient_sync(False)
    train(model, adam(model))


@mistake
def converted_within_session():
    model = sharded()
    optimizer = adam(model)
    with Session(model=model, optimizer=optimizer, checkpoint_steps=1) as session:
        model.to(torch.bfloat16)
        for _ in session.epochs(EPOCHS):
            for batch in session.batches(loader()):
                step(model, optimizer, batch.bfloat16())


# A run that continues with other objects.


@mistake
def resumed_with_another_width():
    model = sharded(width=10)
    train(model, adam(model))


@mistake
def resumed_with_another_dtype():
    model = fully_shard(plain().bfloat16(), mesh=mesh())
    train(model, adam(model), body=lambda *args: step(*args[:2], args[2].bfloat16()))


@mistake
def resumed_with_another_optimizer():
    model = sharded()
    train(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))


@mistake
def resumed_with_other_groups():
    model = sharded()
    groups = [{"params": layer.parameters()} for layer in (model[0], model[2])]
    train(model, torch.optim.AdamW(groups, lr=0.01))


@mistake
def resumed_with_parameters_in_another_order():
    model = sharded()
    train(model, torch.optim.AdamW([*reversed([*model.parameters()])], lr=0.01))


@mistake
def resumed_with_the_sampler_of_all_ranks():
    model = tensor_parallel()
    train(model, adam(model))


def main(name):
    dist.init_process_group("gloo")
    {**MISTAKES, "good": good}[name]()
    gc.collect()  # without this, gloo ranks of torch 2.13 sometimes abort at exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
