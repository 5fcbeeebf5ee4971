"""Weights loaded into the models of a session: a user's, as torch or safetensors saved them, or the best of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from slipway.base.contract import BEST
from slipway.base.errors import SessionError
from slipway.base.reading import read_start
from slipway.checkpoint.components import Stateful, restore
from slipway.checkpoint.folder import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.store import read_best
from slipway.dist.collectives import run_on_root
from slipway.dist.communicator import Communicator
from slipway.state.model_state import Model
from slipway.state.named_objects import named_objects
from slipway.state.wrappers import SEGMENTS

SAFE_TORCH = "2.10"
"""The oldest torch whose ``weights_only`` keeps a file from running code (CVE-2026-24747)."""
NESTS = ("state_dict", "model_state_dict", "model")
"""Under which training scripts save a model's state_dict beside other things."""


class WeightsError(Exception):
    """A file cannot be used for weights; the message says why, and goes behind the file's name."""


def read_file(path: Path) -> Any:
    """Return what the file holds, its tensors on the CPU: safetensors by its suffix, anything else by ``torch.load``.

    Raises:
        WeightsError: if it cannot be read, or not safely.
    """
    safetensors = path.suffix == ".safetensors"
    if not safetensors and torch.__version__ < SAFE_TORCH:
        raise WeightsError(
            f"is not read by torch {torch.__version__}, where such a file can run code (CVE-2026-24747, fixed in "
            "2.10). Convert it on a machine with a later torch: "
            "safetensors.torch.save_file(torch.load(path, weights_only=True), 'weights.safetensors')"
        )
    try:
        read_start(path, limit=1)  # the readers would wait for a FIFO
        return load_file(path) if safetensors else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # on a damaged file the readers raise whatever they stumble over
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise WeightsError(f"cannot be read: {reason}") from error


def fitted(content: Any, own: Mapping[str, object]) -> dict[str, Tensor]:
    """Return the state_dict in ``content``, by the model's ``own`` names, with or without those of wrappers.

    Raises:
        WeightsError: if ``content`` is no state_dict, and holds none.
    """
    if isinstance(content, Mapping):
        nested = (content[key] for key in NESTS if isinstance(content.get(key), Mapping))
        content = next(nested, content)
    if not (isinstance(content, Mapping) and all(isinstance(value, Tensor) for value in content.values())):
        raise WeightsError("must hold a state_dict: tensors by name, nothing else.")
    given: dict[str, Tensor] = dict(content)
    shorter = Counter(map(_without_wrappers, own))
    free = {_without_wrappers(name): name for name in own if name not in given}
    names = {short: name for short, name in free.items() if shorter[short] == 1}
    return {name if name in own else names.get(_without_wrappers(name), name): tensor for name, tensor in given.items()}


def _without_wrappers(name: str) -> str:
    """Return the name of a tensor without what DistributedDataParallel and torch.compile add."""
    return ".".join(part for part in name.split(".") if part not in SEGMENTS)


def named_weights(weights: Any, models: Mapping[str, object]) -> dict[str, Path]:
    """Return the files of the argument ``weights`` of a session, by the names of its ``models``.

    Raises:
        SessionError: if one is given for no model, or for what is no ``torch.nn.Module``.
    """
    named = named_objects("weights", weights)
    given = {name.replace("weights", "model", 1): Path(path) for name, path in named.items()}
    for name in given:
        if name not in models:
            names = ", ".join(models) or "none"
            raise SessionError(
                "session-arguments",
                f"weights is a path for one model, or a dictionary by name for several; here: {names}.",
            )
        if not isinstance(models[name], Model):
            raise SessionError("session-arguments", f"weights are for a torch.nn.Module, which {name} is not.")
    return given


def read_weights(files: Mapping[str, Path], models: Mapping[str, object]) -> Checkpoint:
    """Return ``files`` as a checkpoint from which a run begins.

    Args:
        files: by the names of models.
        models: the components of a session, a Model by each of these names.

    Raises:
        SessionError: if one cannot be read, or is another model's, naming the first tensors that differ.
    """
    tensors = {}
    for name, path in files.items():
        model = cast("Model", models[name])
        try:
            found = fitted(read_file(path), model.state_dict())
        except WeightsError as error:
            raise SessionError("bad-weights", f"weights {path} {error}") from error
        if differing := model.differences(found, source="the file"):
            raise SessionError("bad-weights", f"weights {path} do not fit {name}: {differing}.")
        tensors[name] = {key: tensor.contiguous() for key, tensor in found.items()}
    return Checkpoint(tensors, Header(Position()))


def load_best(models: Mapping[str, Stateful], checkpoints: Path, comm: Communicator) -> float:
    """Load the weights of the best of ``checkpoints`` into ``models``; return its metric. All ranks must call this.

    Raises:
        SessionError: on every rank, if no metric was recorded to choose it by.
        DamagedBestError: on every rank, if it is damaged; it names the next best one.
    """

    def find() -> Checkpoint:
        if not (checkpoints / BEST).exists():
            raise SessionError(
                "no-best-checkpoint",
                f"{checkpoints} has no best one: Session(best=NAME), and session.metrics(NAME=...) in each epoch.",
            )
        return read_best(checkpoints)

    restored = restore(models, run_on_root(comm, find), comm)
    assert restored
    assert restored.header.metric
    return restored.header.metric.value
