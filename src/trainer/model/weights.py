"""Loading of initial weights from a file (``--weights``)."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from slipway.capture.weight_files import WeightsError, fitted, read_state_dict
from trainer.config.errors import ConfigError


def load_weights(model: nn.Module, path: str) -> None:
    """Load the tensors of the local file ``path`` into ``model``.

    The file may come from ``trainer export``, or from a training script that saved the model wrapped in
    DistributedDataParallel or torch.compile. If the file has a different number of classes, the last layer keeps its
    random weights. All other tensors must fit.

    Raises:
        ConfigError: if the file cannot be read or does not fit; the message lists the first mismatched tensors.
    """
    own = model.state_dict()
    try:
        given = fitted(read_state_dict(Path(path)), own)
    except WeightsError as error:
        raise ConfigError("bad-weights", f"--weights {path} {error}") from error
    head = {name for name in own if name.rpartition(".")[0] == list(own)[-1].rpartition(".")[0]}
    if all(name in given for name in head) and any(given[name].shape != own[name].shape for name in head):
        given |= {name: own[name] for name in head}
    wrong = [name for name in own if name not in given or given[name].shape != own[name].shape]
    wrong += [name for name in given if name not in own]
    if wrong:
        named = ", ".join([*wrong[:3], "..."] if wrong[3:] else wrong)
        raise ConfigError(
            "bad-weights", f"--weights {path} does not fit the model: {len(wrong)} tensors differ: {named}"
        )
    own.update(given)  # update in place to keep the layer versions, which some models read
    model.load_state_dict(own)
