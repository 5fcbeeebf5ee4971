"""Export of a run's weights to a file that plain torch or safetensors loads."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

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

V = TypeVar("V")

AVERAGE = "ema"
"""Name of the trainer's averaged weights."""
SAFETENSORS = ".safetensors"
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers of a full file system or an exceeded limit."""


class ExportError(SlipwayError):
    """Weights cannot be exported; nothing is written."""


def export(run: Path, target: Path, *, best: bool, model: str | None) -> str:
    """Write the weights of a model in the run folder ``run`` to ``target``; return the models' names and the step.

    Args:
        run: a run folder of a session or the trainer, or a single checkpoint.
        target: a new file: safetensors if it has that suffix, otherwise written by ``torch.save``. It gets one
            state_dict; with ``torch.save`` and several models, a dict of state_dicts by name.
        best: whether to export the best checkpoint instead of the newest.
        model: name of one of several models, or "ema" for the trainer's averaged weights; None for all models.

    Raises:
        SlipwayError, OSError: if there are no such weights, or they cannot be written; ``target`` is then unchanged.
    """
    require_new(target)
    found = find(run, best=best)
    states = {name: _state(found, component) for name, component in models(found, model).items()}
    only = next(iter(states.values())) if len(states) == 1 else None
    if only is None and target.suffix == SAFETENSORS:
        raise several_models("a .safetensors file", states)
    write(target, states if only is None else only)
    return f"{', '.join(states)} at step {found.header.position.step}"


def find(run: Path, *, best: bool) -> Checkpoint:
    """Return the newest or the best valid checkpoint of a run folder, or a checkpoint that ``run`` names.

    Raises:
        SlipwayError: if there is none.
    """
    if best and not (run / CHECKPOINTS / BEST).exists():
        raise ExportError(
            "no-best-checkpoint", f"{run} has no best checkpoint, because the run recorded no metric to compare."
        )
    return read_best(run / CHECKPOINTS) if best else read_newest(run)


def several_models(target: str, names: Iterable[str]) -> ExportError:
    """Return the error for several models in one ``target``."""
    return ExportError("several-models", f"{target} holds one model: set --model to one of {', '.join(names)}.")


def require_new(target: Path) -> None:
    """Raise an ExportError if ``target`` exists."""
    if os.path.lexists(target):
        raise ExportError("file-exists", f"{target} already exists: name another file, or remove it.")


def write(target: Path, content: dict[str, Any], *, metadata: dict[str, str] | None = None) -> None:
    """Write ``content`` to the file ``target`` atomically.

    Args:
        target: safetensors if it has that suffix, otherwise written by ``torch.save``.
        content: for safetensors, tensors by name.
        metadata: metadata for the header of a safetensors file.

    Raises:
        ExportError: if the file cannot be written.
    """
    save: Callable[[Path], None] = functools.partial(_save, content)
    if target.suffix == SAFETENSORS:
        save = functools.partial(save_file, require_tensors(content, Tensor), metadata=metadata)
    with writing(target), replacing(target) as temporary:
        save(temporary)


@contextlib.contextmanager
def writing(target: Path) -> Iterator[None]:
    """Raise an ExportError for an error in the body, which writes ``target``."""
    try:
        yield
    except SlipwayError:
        raise
    except Exception as error:  # torch and safetensors have their own errors for a full disk
        if full := set(_error_numbers(error)) & FULL:
            reason = os.strerror(min(full))
            raise ExportError(
                "disk-full", f"cannot write {target}: {reason}. Free space or quota, or name a file on another disk."
            ) from error
        raise ExportError(
            "cannot-write", f"cannot write {target}: {getattr(error, 'strerror', None) or error}"
        ) from error


def _save(content: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:  # given a path, torch loses the error number
        torch.save(content, file)


def _error_numbers(error: BaseException | None) -> Iterator[int]:
    """Yield the operating system's error numbers in ``error`` and in its causes and contexts."""
    while error:
        yield from os_error_numbers(error)
        if isinstance(error, OSError) and error.errno:
            yield error.errno
        error = error.__cause__ or error.__context__


def models(found: Checkpoint, model: str | None) -> dict[str, str]:
    """Return the components of the models in ``found`` by the models' names, or only that of ``model``.

    Raises:
        ExportError: if there is no such model.
    """
    saved = sorted(found.components)
    own = {name.removeprefix("model."): name for name in saved if re.match(r"model(\.|$)", name)}
    if model is None and own:
        return own
    known = own | ({AVERAGE: AVERAGE} if AVERAGE in saved else {})
    if model not in known:
        of = f"the models {', '.join(known)}" if known else "none"
        raise ExportError("no-such-model", f"the checkpoint has no model{f' {model}' if model else ''}: it holds {of}.")
    return {model: known[model]}


def _state(found: Checkpoint, component: str) -> dict[str, Any]:
    return state_dict(component, found.whole(component), found.header.trees.get(component))


def state_dict(component: str, tensors: Mapping[str, V], tree: Any) -> dict[str, Any]:
    """Return the state_dict of a model, of its ``tensors`` and the rest of its state, ``tree``."""
    state = join(tensors, tree)
    if component == AVERAGE:
        state.pop("n_averaged", None)  # number of averaged steps: not a tensor of the model
    return state


def require_tensors(state: dict[str, Any], kind: type[V]) -> dict[str, V]:
    """Return ``state``; raise an ExportError if it holds anything but tensors, each of the class ``kind``."""
    if other := [name for name, value in state.items() if not isinstance(value, kind)]:
        raise ExportError(
            "not-only-tensors",
            f"the model's state holds more than tensors ({other[0]}), so it needs a .pt file instead of safetensors.",
        )
    return state
