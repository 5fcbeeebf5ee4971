"""Activation checkpointing: a block keeps its input alone, and computes the rest again when its gradient is due.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.config.errors import ConfigError

Replay = Callable[[], AbstractContextManager[None]]
"""Called during a forward pass, it returns the context in which to compute a part of that pass again."""


def recompute_blocks(model: nn.Module, cuts: Sequence[str], *, replay: Replay) -> None:
    """Let the blocks of ``model`` compute again in the backward pass what they do not keep.

    The result is the same bit for bit: random numbers are drawn again, and batch norm counts a batch once.

    Args:
        model: whose blocks are changed in place; names of parameters stay.
        cuts: submodules before which stages begin: a block that is cut is not called as a whole.
        replay: for random numbers.

    Raises:
        ConfigError: if there are no blocks.
    """
    names = [name for name in blocks(model) if not any(cut.startswith(f"{name}.") for cut in cuts)]
    if not names:
        raise ConfigError(
            "no-blocks",
            f"--recompute: {type(model).__name__} has no blocks: modules with children of their own in an "
            "nn.Sequential or nn.ModuleList.",
        )
    for name in names:
        block = model.get_submodule(name)
        block.forward = partial(_forward, block, block.forward, replay)


def blocks(model: nn.Module, prefix: str = "") -> list[str]:
    """Return the names of the blocks: what stands in a list of modules and has children, but is no list of blocks."""
    found = []
    for name, child in model.named_children():
        inner = blocks(child, f"{prefix}{name}.")
        is_list = isinstance(child, nn.Sequential | nn.ModuleList)
        if isinstance(model, nn.Sequential | nn.ModuleList) and any(child.children()) and not (is_list and inner):
            found.append(f"{prefix}{name}")
        else:
            found += inner
    return found


def _forward(block: nn.Module, forward: Callable[..., Any], replay: Replay, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _again(block, replay())

    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


@contextmanager
def _again(block: nn.Module, replayed: AbstractContextManager[None]) -> Iterator[None]:
    """Compute with copies of the buffers of ``block``, so that batch norm counts no batch twice."""
    with replayed, _copied_buffers(block):
        yield


@contextmanager
def _copied_buffers(block: nn.Module) -> Iterator[None]:
    kept: list[tuple[dict[str, Tensor | None], dict[str, Tensor | None]]] = []
    for module in block.modules():
        buffers = module._buffers  # noqa: SLF001 -- torch has no other way to exchange them
        kept.append((buffers, dict(buffers)))
        buffers.update({name: None if value is None else value.clone() for name, value in buffers.items()})
    try:
        yield
    finally:  # torch ends the computation by an exception where it has all that it needs
        for buffers, before in kept:
            buffers.update(before)
