"""A first backward pass without a trace, after which DDP sums gradients in the order that it keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from slipway.wrappers import replicas_in


def needs_warm_up(model: object, ranks: int) -> bool:
    """Return whether the first step of an attempt would differ in the last bits from any other.

    DDP lays its buckets anew after the first backward pass, in the order in which gradients came; three and more ranks
    then add them up in another order. Not with ``find_unused_parameters`` or ``static_graph``.
    """
    return ranks > 2 and any(  # noqa: PLR2004 -- the sum of two does not depend on the order
        not wrapper.find_unused_parameters and not wrapper.static_graph for wrapper in replicas_in(model)
    )


@contextlib.contextmanager
def without_trace(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Undo what a forward and a backward pass within leave in ``modules``: gradients, and changed buffers."""
    modules = list(modules)
    buffers = [(buffer, buffer.detach().clone()) for module in modules for buffer in module.buffers()]
    yield
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    for module in modules:
        module.zero_grad(set_to_none=True)
