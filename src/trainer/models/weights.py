"""Starting from somebody's weights."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer.errors import ConfigError


def load_weights(model: nn.Module, path: str) -> None:
    """Copy the tensors of the local file ``path`` into ``model``.

    The last layer keeps its random weights where the file's has another number of classes; everything else must fit.

    Raises:
        ConfigError: if the file cannot be read or does not fit, naming the first tensors at fault.
    """
    given = _read(Path(path))
    own = model.state_dict()
    head = {name for name in own if name.rpartition(".")[0] == list(own)[-1].rpartition(".")[0]}
    if all(name in given for name in head) and any(given[name].shape != own[name].shape for name in head):
        given |= {name: own[name] for name in head}
    wrong = [name for name in own if name not in given or given[name].shape != own[name].shape]
    wrong += [name for name in given if name not in own]
    if wrong:
        named = ", ".join([*wrong[:3], "..."] if wrong[3:] else wrong)
        raise ConfigError(f"--weights {path} does not fit the model in {len(wrong)} tensors: {named}")
    own.update(given)  # it knows the versions of the layers, and some models ask for them
    model.load_state_dict(own)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        given = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # on a damaged file torch's readers raise whatever they stumble over
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(f"--weights {path} cannot be read: {reason}") from error
    if not (isinstance(given, dict) and all(isinstance(value, Tensor) for value in given.values())):
        raise ConfigError(f"--weights {path} must hold a state_dict: tensors by name, nothing else.")
    return cast("dict[str, Tensor]", given)
