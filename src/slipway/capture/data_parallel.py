"""Tensors that data parallelism keeps identical on all ranks: averaged parameters and broadcast buffers.

Also the warm-up backward pass, after which DDP sums gradients in its final order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from slipway.checkpoint.fingerprint import Fingerprint, fingerprint
from slipway.checkpoint.shards import is_sharded
from slipway.dist.existing_group import under_horovod
from slipway.state.optimizer_attributes import parameters_in
from slipway.state.wrappers import replicas_in


class ReplicatedTensors:
    """Finds the tensors that training keeps identical on all ranks, so that a save need not compare them."""

    def __init__(self, modules: Mapping[str, nn.Module], optimizers: Mapping[str, Any]) -> None:
        """Store ``modules``, with their wrappers, and ``optimizers``, by component name."""
        self.modules, self._optimizers = modules, optimizers
        self.within_pass = False
        """Whether the next operation is a training forward pass, so that no code uses the buffers before it."""

    def synchronized(self) -> list[str]:
        """Return the names of models whose next forward pass begins with rank 0's buffers."""
        return [
            name
            for name, module in self.modules.items()
            if (wrappers := replicas_in(module)) and all(map(_synchronizes, wrappers))
        ]

    def unsynchronized(self) -> list[str]:
        """Return the names of models whose wrapper broadcasts buffers, but not before the next forward pass.

        DistributedDataParallel does not broadcast after a forward pass without gradients or under ``no_sync``.
        """
        return [
            name
            for name, module in self.modules.items()
            if any(each.broadcast_buffers and not each.require_forward_param_sync for each in replicas_in(module))
        ]

    def set_unsynchronized(self, names: Container[str]) -> None:
        """Disable the buffer broadcast before the next forward pass of the models ``names``; enable it for others."""
        for name, module in self.modules.items():
            for wrapper in replicas_in(module):
                wrapper.require_forward_param_sync = name not in names

    def fingerprint(self, name: str, state: Mapping[Any, Any]) -> Fingerprint:
        """Return the fingerprint of the values that may differ between ranks in the component ``name``."""
        with_elements = name not in self._optimizers or not self._averages(name)
        own = self.own(name, state)
        return fingerprint(own, with_elements=with_elements, with_shards=False, restored_in_place=name in self.modules)

    def averaged(self, name: str, state: Mapping[Any, Any]) -> Fingerprint:
        """Return the fingerprint of a model's parameters that training keeps identical on all ranks."""
        alike = self._averaged([name]) if name in self.modules else ()
        return fingerprint({key: value for key, value in state.items() if _is_in(value, alike)}, restored_in_place=True)

    def own(self, name: str, state: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """Return the entries of ``state``, of the component ``name``, that may differ between ranks."""
        if name not in self.modules:
            return state
        alike = self._alike(name)
        return {key: value for key, value in state.items() if not is_sharded(value) and not _is_in(value, alike)}

    def _averages(self, optimizer: str) -> bool:
        """Return whether each parameter of an optimizer has the same gradients on all ranks."""
        alike = self._averaged(self.modules)
        parameters = parameters_in(self._optimizers[optimizer])
        return all(is_sharded(parameter) or parameter.data_ptr() in alike for parameter in parameters)

    def _alike(self, name: str) -> set[int]:
        """Return the addresses of a model's averaged parameters, and of buffers that are broadcast before use."""
        buffers = (
            _addresses(wrapper, wrapper.module.named_buffers())
            for wrapper in replicas_in(self.modules[name])
            if self.within_pass and _synchronizes(wrapper)
        )
        return self._averaged([name]).union(*buffers)

    def _averaged(self, names: Iterable[str]) -> set[int]:
        """Return the addresses of parameters whose gradients are averaged, in the models ``names``."""
        found: set[int] = set()
        for name in names:
            if under_horovod():
                found |= {parameter.data_ptr() for parameter in self.modules[name].parameters()}
            for wrapper in replicas_in(self.modules[name]):
                found |= _addresses(wrapper, wrapper.module.named_parameters())
        return found


def _addresses(wrapper: DistributedDataParallel, named: Iterable[tuple[str, Tensor]]) -> set[int]:
    return {tensor.data_ptr() for key, tensor in named if key not in wrapper.parameters_to_ignore}


def _is_in(value: Any, addresses: Container[int]) -> bool:
    return isinstance(value, Tensor) and not is_sharded(value) and value.numel() > 0 and value.data_ptr() in addresses


def _synchronizes(wrapper: DistributedDataParallel) -> bool:
    return wrapper.broadcast_buffers and wrapper.require_forward_param_sync


def needs_warm_up(model: object, ranks: int) -> bool:
    """Return whether the first step of an attempt differs from later steps in the last bits.

    After the first backward pass, DDP rebuilds its buckets in the order in which gradients arrived. Three or more ranks
    then add gradients in another order. DDP does not rebuild with ``find_unused_parameters`` or ``static_graph``.
    """
    return ranks > 2 and any(  # noqa: PLR2004 -- the sum of two does not depend on the order
        not wrapper.find_unused_parameters and not wrapper.static_graph for wrapper in replicas_in(model)
    )


@contextlib.contextmanager
def undo_pass(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Undo the effects of a forward and a backward pass on ``modules``: clear gradients, restore buffers."""
    modules = list(modules)
    buffers = [(buffer, buffer.detach().clone()) for module in modules for buffer in module.buffers()]
    yield
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    for module in modules:
        module.zero_grad(set_to_none=True)
