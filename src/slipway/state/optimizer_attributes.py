"""Attributes that a script has set on an optimizer: neither torch's own attributes nor the optimizer's state."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from slipway.checkpoint.shards import is_sharded, local_part
from slipway.state.steps import inner_optimizer
from slipway.state.wrappers import is_kind

WRAPPERS = ("AcceleratedOptimizer", "_FabricOptimizer")
"""Wrappers of optimizers; each process creates their other attributes again."""
BITSANDBYTES_CLASS = "Optimizer8bit"
"""Class of bitsandbytes whose attributes describe initialization in this process only."""
STEP_ATTRIBUTES = {"_opt_called", "_numel_cache", "_need_device_dtype_check_for_fused"}
"""Attributes that schedulers, LBFGS and torch's fused optimizers set on an optimizer when it steps."""


def optimizers_with_attributes(optimizers: Mapping[str, Any]) -> dict[str, Optimizer]:
    """Return the optimizers whose attributes are saved, without wrappers."""
    inner = {
        name: inner_optimizer(given) if any(is_kind(given, kind) for kind in WRAPPERS) else given
        for name, given in optimizers.items()
    }
    return {
        name: each
        for name, each in inner.items()
        if isinstance(each, Optimizer) and not is_kind(each, BITSANDBYTES_CLASS)
    }


def script_attributes(optimizer: Optimizer) -> list[tuple[str, Any]]:
    """Return the attributes of ``optimizer`` that torch does not set."""
    return [(name, value) for name, value in vars(optimizer).items() if name not in _of_torch()]


@functools.cache
def _of_torch() -> set[str]:
    plain = SGD([torch.zeros(1, device="cpu")], lr=1.0)
    return {*vars(plain), "step", *STEP_ATTRIBUTES}


def parameters_in(optimizer: Any) -> Iterator[Tensor]:
    """Yield the parameters in the parameter groups of ``optimizer``; none if it has no groups."""
    return (parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"])


def state_parts(optimizer: Optimizer) -> Iterator[Any]:
    """Yield the groups and state of ``optimizer`` and their contents, to which an outer optimizer may refer."""
    yield from (optimizer.param_groups, optimizer.state)
    yield from optimizer.param_groups
    yield from parameters_in(optimizer)
    for each in optimizer.state.values():
        yield each
        yield from each.values() if isinstance(each, dict) else ()


def saved_addresses(optimizer: Optimizer) -> set[int]:
    """Return the addresses of gradients, and of tensors that are saved with ``optimizer`` or its model."""
    parameters = [*parameters_in(optimizer)]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return {*map(address_of, (*parameters, *gradients, *tensors_in(optimizer.state_dict())))} - {0}


def address_of(tensor: Tensor) -> int:
    """Return the address of the elements of ``tensor``, or of this rank's; 0 if it is not strided, or has none."""
    own = local_part(tensor) if is_sharded(tensor) else tensor
    return own.data_ptr() if own.layout == torch.strided else 0


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested dictionaries, lists and tuples."""
    return (each for each in values_in(tree) if isinstance(each, Tensor))


def values_in(tree: Any) -> Iterator[Any]:
    """Yield ``tree`` and all values nested in it."""
    yield tree
    if isinstance(tree, (Mapping, list, tuple)):
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from values_in(each)
