"""Starting from somebody's weights."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from slipway.weights import WeightsError, read_file, require_state_dict
from trainer.errors import ConfigError


def load_weights(model: nn.Module, path: str) -> None:
    """Copy the tensors of the local file ``path`` into ``model``.

    The last layer keeps its random weights where the file's has another number of classes; everything else must fit.

    Raises:
        ConfigError: if the file cannot be read or does not fit, naming the first tensors at fault.
    """
    given = _read(path)
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


def _read(path: str) -> dict[str, Tensor]:
    try:
        content = read_file(Path(path))
        exported = isinstance(content, dict) and isinstance(content.get("state_dict"), dict)  # by `trainer export`
        return require_state_dict(content["state_dict"] if exported else content)
    except WeightsError as error:
        raise ConfigError(f"--weights {path} {error}") from error
