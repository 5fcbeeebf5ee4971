"""Clipping of a sharded model's gradients, compared with those of an equal model that is not sharded.

    clipping.py

On four ranks. Rank 0 prints one JSON object: by kind of sharding, by order of the norm, the norm, that of the unsharded
model, and the largest difference of a clipped gradient; whether torch's function raises; and the errors of nan.
"""

import copy
import json
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from slipway import clip_grad_norm_

MAX_NORM = 0.01
ORDERS = {"1": 1.0, "2": 2.0, "3": 3.0, "inf": math.inf}


def model_of(kind):
    """Return the model, sharded in one of several ways; on all ranks with equal weights and without gradients."""
    torch.manual_seed(0)
    layers = nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 24), nn.LayerNorm(24), nn.Linear(24, 3)
    model = nn.Sequential(*layers)
    model[3].requires_grad_(False)
    whole = init_device_mesh("cpu", (4,), mesh_dim_names=("data",))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    if kind in {"tensor", "tensor and data", "tensor, data and plain"}:
        parallelize_module(model, grid["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    match kind:
        case "data":
            fully_shard(model, mesh=whole)
        case "replicas":
            fully_shard(model, mesh=grid)
        case "data and plain":
            fully_shard(model[0], mesh=whole)
        case "two data meshes":
            fully_shard(model[0], mesh=whole)
            fully_shard(model[2], mesh=grid)
        case "tensor and data":
            fully_shard(model, mesh=grid["data"])
        case "tensor, data and plain":
            for number in (0, 2):
                fully_shard(model[number], mesh=grid["data"])
    return model


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def pass_of(model, scale=1.0):
    """Compute gradients, of the same samples on all ranks."""
    model.zero_grad()
    torch.manual_seed(1)
    (model(torch.randn(7, 10)).square().mean() * scale).backward()


def compare(model, plain, order):
    pass_of(model)
    pass_of(plain)
    norm = clip_grad_norm_((each for each in model.parameters()), MAX_NORM, order)
    expected = nn.utils.clip_grad_norm_(plain.parameters(), MAX_NORM, order)
    pairs = [(one, other) for one, other in zip(model.parameters(), plain.parameters(), strict=True)]
    assert all((one.grad is None) == (other.grad is None) for one, other in pairs)
    apart = [(whole(one.grad) - other.grad).abs().max().item() for one, other in pairs if other.grad is not None]
    return {"norm": norm.item(), "expected": expected.item(), "apart": max(apart), "type": type(norm).__name__}


def raises(function, *args, **options):
    """Return the name of the exception that a call raises; "" if it raises none."""
    try:
        function(*args, **options)
    except Exception as error:  # noqa: BLE001 -- reported
        return type(error).__name__
    return ""


def of_kind(kind):
    model, plain = model_of(kind), model_of("plain")
    found = {order: compare(model, plain, value) for order, value in ORDERS.items()}
    pass_of(model)
    found["raised by torch"] = raises(nn.utils.clip_grad_norm_, model.parameters(), MAX_NORM)
    pass_of(model)
    before = copy.deepcopy([whole(each.grad) for each in model.parameters() if each.grad is not None])
    kept = clip_grad_norm_(model.parameters(), 1e6)
    after = [whole(each.grad) for each in model.parameters() if each.grad is not None]
    found["unchanged"] = all(map(torch.equal, before, after))
    found["kept"] = kept.item()
    pass_of(model, scale=math.nan)
    found["raised for nan"] = raises(clip_grad_norm_, model.parameters(), 1.0, error_if_nonfinite=True)
    found["nan"] = clip_grad_norm_(model.parameters(), 1.0).isnan().item()
    return found


def main():
    dist.init_process_group("gloo")
    kinds = ("plain", "data", "replicas", "tensor", "data and plain", "two data meshes", "tensor and data")
    found = {kind: of_kind(kind) for kind in (*kinds, "tensor, data and plain")}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
