"""Weights out of a run folder, into a file that plain torch loads."""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from slipway.base.contract import BEST, CHECKPOINTS
from slipway.base.errors import SlipwayError
from slipway.base.files import replacing
from slipway.base.third_party_errors import os_error_numbers
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.stateful import join
from slipway.checkpoint.store import read_best, read_newest

AVERAGE = "ema"
"""The trainer's average of the weights."""


SAFETENSORS = ".safetensors"

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers of a file system, or of a limit, that leaves no space."""


class ExportError(SlipwayError):
    """Nothing is written; the message says why."""


def export(run: Path, target: Path, *, best: bool, model: str | None) -> str:
    """Write the weights of a model in the run folder ``run`` to ``target``; return what that was.

    Args:
        run: of a session or of the trainer, or a single checkpoint.
        target: a new file: safetensors by its suffix, otherwise of ``torch.save``. It gets one state_dict, or, of
            several models and by ``torch.save``, one for each by name.
        best: whether to take the best checkpoint, not the newest.
        model: name of one of several models, or "ema" for the average that the trainer keeps; None for all.

    Raises:
        SlipwayError, OSError: if there are no such weights, or they cannot be written; ``target`` is then as before.
    """
    require_new(target)
    if best and not (run / CHECKPOINTS / BEST).exists():
        raise ExportError(
            "no-best-checkpoint", f"{run} has no best checkpoint, as no metric was recorded to choose it by."
        )
    found = read_best(run / CHECKPOINTS) if best else read_newest(run)
    states = _states(found, model)
    only = next(iter(states.values())) if len(states) == 1 else None
    if only is None and target.suffix == SAFETENSORS:
        raise ExportError(
            "several-models", f"a .safetensors file holds one model: choose it by --model, of {', '.join(states)}."
        )
    write(target, states if only is None else only)
    return f"{', '.join(states)} at step {found.header.position.step}"


def require_new(target: Path) -> None:
    """Raise an ExportError if there is something in the place of ``target``."""
    if os.path.lexists(target):
        raise ExportError("file-exists", f"{target} is there already: name another file, or remove it.")


def write(target: Path, content: dict[str, Any], *, metadata: dict[str, str] | None = None) -> None:
    """Write ``content`` as the file ``target``, which appears whole or not at all.

    Args:
        target: safetensors by its suffix, otherwise of ``torch.save``.
        content: for safetensors, tensors by name.
        metadata: what the header of a safetensors file holds besides.

    Raises:
        ExportError: if it cannot be written.
    """
    save: Callable[[Path], None] = functools.partial(_save, content)
    if target.suffix == SAFETENSORS:
        save = functools.partial(save_file, _tensors(content), metadata=metadata)
    try:
        with replacing(target) as temporary:
            save(temporary)
    except Exception as error:  # torch and safetensors have their own errors for a full disk
        if full := set(_error_numbers(error)) & FULL:
            reason = os.strerror(min(full))
            raise ExportError(
                "disk-full", f"{target} cannot be written: {reason}. Free space or quota, or name a file elsewhere."
            ) from error
        raise ExportError(
            "cannot-write", f"{target} cannot be written: {getattr(error, 'strerror', None) or error}"
        ) from error


def _save(content: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:  # by the name of a file, torch loses the error number
        torch.save(content, file)


def _error_numbers(error: BaseException | None) -> Iterator[int]:
    """Yield the error numbers of the system that ``error``, or one that it followed, names."""
    while error:
        yield from os_error_numbers(error)
        if isinstance(error, OSError) and error.errno:
            yield error.errno
        error = error.__cause__ or error.__context__


def _states(found: Checkpoint, model: str | None) -> dict[str, dict[str, Any]]:
    """Return the state_dict of each model in ``found``, by name, or only that of the one that ``model`` names."""
    saved = sorted({*found.tensors, *found.header.trees})
    models = {name.removeprefix("model."): name for name in saved if re.match(r"model(\.|$)", name)}
    average = {AVERAGE: AVERAGE} if AVERAGE in saved else {}
    known = models | average
    components = models if model is None else {model: known[model]} if model in known else {}
    if not components:
        of = f"the models {', '.join(known)}" if known else "none"
        raise ExportError("no-such-model", f"there is no model{f' {model}' if model else ''} in it: it holds {of}.")
    states = {
        name: join(found.tensors.get(component, {}), found.header.trees.get(component))
        for name, component in components.items()
    }
    if components.get(AVERAGE) == AVERAGE:
        states[AVERAGE].pop("n_averaged", None)  # of how many steps: no tensor of the model
    return states


def _tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    """Return ``state`` if it holds nothing but tensors."""
    if other := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise ExportError(
            "not-only-tensors",
            f"the model holds more than tensors ({other[0]}), which a .safetensors file cannot: take .pt.",
        )
    return state
