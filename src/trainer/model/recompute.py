"""Activation checkpointing: a block keeps only its input and recomputes its activations in the backward pass.

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
"""Function to call during a forward pass; it returns the context in which to recompute a part of that pass."""


def recompute_blocks(model: nn.Module, cuts: Sequence[str], *, replay: Replay) -> None:
    """Make the blocks of ``model`` recompute their activations in the backward pass.

    The result is bitwise identical: the recomputation draws the same random numbers, and batch norm counts each batch
    once.

    Args:
        model: the model, whose blocks are changed in place; parameter names do not change.
        cuts: submodules before which stages begin. A block that contains a cut is never called as a whole, so it is
            left unchanged.
        replay: restores the random number generators.

    Raises:
        ConfigError: if the model has no blocks.
    """
    names = [name for name in blocks(model) if not any(cut.startswith(f"{name}.") for cut in cuts)]
    if not names:
        raise ConfigError(
            "no-blocks",
            f"--recompute: {type(model).__name__} has no blocks. A block is a module in an nn.Sequential or "
            "nn.ModuleList that has child modules.",
        )
    for name in names:
        block = model.get_submodule(name)
        block.forward = partial(_forward, block, block.forward, replay)


def blocks(model: nn.Module, prefix: str = "") -> list[str]:
    """Return the names of the blocks: modules in a module list that have children and are not lists of blocks."""
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
    """Recompute with copies of the buffers of ``block``, so that batch norm does not count a batch twice."""
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
    finally:  # torch ends the recomputation with an exception once it has all needed tensors
        for buffers, before in kept:
            buffers.update(before)
