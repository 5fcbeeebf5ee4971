"""Loading of weights into a session's models: from a user's files, or the best checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from slipway.base.contract import BEST
from slipway.base.errors import SessionError
from slipway.capture.weight_files import WeightsError, fitted, read_state_dict, saved_tensors
from slipway.checkpoint.format import Checkpoint, Tensors
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.saved_tensors import SavedTensor, SavedTensors
from slipway.checkpoint.shards import Place
from slipway.checkpoint.stateful import Stateful, has_shards, restore
from slipway.checkpoint.store import read_best
from slipway.dist.collectives import run_on_root
from slipway.dist.communicator import Communicator
from slipway.state.model_state import Model
from slipway.state.named_objects import named_objects


def named_weights(weights: Any, models: Mapping[str, object]) -> dict[str, Path]:
    """Return the paths of the Session argument ``weights``, by model name.

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


def read_weights(files: Mapping[str, Path], components: Mapping[str, Stateful]) -> Checkpoint:
    """Return a checkpoint at step 0 with the weights of ``files``.

    If a component is sharded, safetensors files are not read yet: each rank reads its parts.

    Args:
        files: weight files or folders, by model name.
        components: the session's components, with a Model under each of these names.

    Raises:
        SessionError: if a file cannot be read or does not fit its model; the message names the first differing tensors.
    """
    in_parts = has_shards(components)
    tensors: Tensors = {}
    parts: dict[Place, SavedTensor] = {}
    for name, path in files.items():
        model = cast("Model", components[name])
        try:
            saved = saved_tensors(path) if in_parts else None
            found = (
                read_state_dict(path) if saved is None else {key: _without_data(each) for key, each in saved.items()}
            )
        except WeightsError as error:
            raise SessionError("bad-weights", f"weights {path} {error}") from error
        own = [*model.state_dict()]
        found = model.with_tied(fitted(found, own))
        if differing := model.differences(found, source="the file"):
            raise SessionError("bad-weights", f"weights {path} do not fit {name}: {differing}.")
        if saved is None:
            tensors[name] = {key: tensor.contiguous() for key, tensor in found.items()}
        else:
            parts |= {(name, key): each for key, each in model.with_tied(fitted(saved, own)).items()}
    return Checkpoint(tensors, Header(Position()), SavedTensors(Path("/"), parts) if parts else None)


def _without_data(saved: SavedTensor) -> Tensor:
    return torch.empty(saved.shape, dtype=saved.dtype, device="meta")


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
