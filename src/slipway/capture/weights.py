"""Loading of weights into a session's models: from a user's torch or safetensors file, or the best checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from torch import Tensor

from slipway.base.bounded_read import read_head
from slipway.base.contract import BEST
from slipway.base.errors import SessionError
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.stateful import Stateful, restore
from slipway.checkpoint.store import read_best
from slipway.dist.collectives import run_on_root
from slipway.dist.communicator import Communicator
from slipway.state.model_state import Model
from slipway.state.named_objects import named_objects
from slipway.state.wrappers import SEGMENTS

SAFE_TORCH = "2.10"
"""The oldest torch whose ``weights_only`` keeps a file from running code (CVE-2026-24747)."""
NESTED_KEYS = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts save a model's state_dict beside other data."""


class WeightsError(Exception):
    """A file is not usable as weights; the message states the reason and follows the file's name in a sentence."""


def read_file(path: Path) -> Any:
    """Return the contents of a .safetensors file, or of any other file by ``torch.load``, with tensors on the CPU.

    Raises:
        WeightsError: if the file cannot be read, or cannot be read safely.
    """
    safetensors = path.suffix == ".safetensors"
    if not safetensors and torch.__version__ < SAFE_TORCH:
        raise WeightsError(
            f"is not read with torch {torch.__version__}, because such a file can run code (CVE-2026-24747, fixed in "
            "2.10). Convert it on a machine with a newer torch: "
            "safetensors.torch.save_file(torch.load(path, weights_only=True), 'weights.safetensors')"
        )
    try:
        read_head(path, limit=1)  # fails for a FIFO, on which the readers would block
        return load_file(path) if safetensors else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # for a damaged file the readers raise many types
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise WeightsError(f"cannot be read: {reason}") from error


def fitted(content: Any, own: Mapping[str, object]) -> dict[str, Tensor]:
    """Return the state_dict in ``content``, with its keys mapped to the model's ``own`` names, ignoring wrappers.

    Raises:
        WeightsError: if ``content`` neither is nor contains a state_dict.
    """
    if isinstance(content, Mapping):
        nested = (content[key] for key in NESTED_KEYS if isinstance(content.get(key), Mapping))
        content = next(nested, content)
    if not (isinstance(content, Mapping) and all(isinstance(value, Tensor) for value in content.values())):
        raise WeightsError("must hold a state_dict: a dictionary of tensors by name, and nothing else.")
    given: dict[str, Tensor] = dict(content)
    shorter = Counter(map(_without_wrappers, own))
    free = {_without_wrappers(name): name for name in own if name not in given}
    names = {short: name for short, name in free.items() if shorter[short] == 1}
    return {name if name in own else names.get(_without_wrappers(name), name): tensor for name, tensor in given.items()}


def _without_wrappers(name: str) -> str:
    """Return the name of a tensor without the segments that DistributedDataParallel and torch.compile add."""
    return ".".join(part for part in name.split(".") if part not in SEGMENTS)


def named_weights(weights: Any, models: Mapping[str, object]) -> dict[str, Path]:
    """Return the files of the Session argument ``weights``, by model name.

    Raises:
        SessionError: if a file is given for an unknown model, or for a model that is not a ``torch.nn.Module``.
    """
    named = named_objects("weights", weights)
    given = {name.replace("weights", "model", 1): Path(path) for name, path in named.items()}
    for name in given:
        if name not in models:
            names = ", ".join(models) or "none"
            raise SessionError(
                "session-arguments",
                f"weights is a path for one model, or a dictionary of paths by name for several; the models: {names}.",
            )
        if not isinstance(models[name], Model):
            raise SessionError("session-arguments", f"weights require a torch.nn.Module, but {name} is not one.")
    return given


def read_weights(files: Mapping[str, Path], models: Mapping[str, object]) -> Checkpoint:
    """Return a checkpoint at step 0 with the weights of ``files``.

    Args:
        files: weight files, by model name.
        models: the session's components, with a Model under each of these names.

    Raises:
        SessionError: if a file cannot be read or does not fit its model; the message names the first differing tensors.
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
    """Load the best checkpoint's weights into ``models``, and return its metric; all ranks must call this.

    Raises:
        SessionError: on every rank, if no best checkpoint exists.
        DamagedBestError: on every rank, if the best checkpoint is damaged; the message names the next best one.
    """

    def find() -> Checkpoint:
        if not (checkpoints / BEST).exists():
            raise SessionError(
                "no-best-checkpoint",
                f"{checkpoints} has no best checkpoint: use Session(best=NAME), and call session.metrics(NAME=...) in "
                "each epoch.",
            )
        return read_best(checkpoints)

    restored = restore(models, run_on_root(comm, find), comm)
    assert restored
    assert restored.header.metric
    return restored.header.metric.value
