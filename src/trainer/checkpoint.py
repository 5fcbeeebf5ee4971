"""From a learner to a checkpoint of slipway, and back, on every rank."""

from __future__ import annotations

import hashlib
import json
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from slipway.checkpoint.folder import Checkpoint, Tensors
from slipway.checkpoint.header import Header, Metric
from slipway.communicator import Communicator
from slipway.communicator.sharing import share_json
from slipway.position import Position
from trainer.config import Config
from trainer.data import sampler
from trainer.errors import ConfigError
from trainer.learner import Learner

IDENTITY = (
    "data.dataset",
    "data.image_size",
    "data.val_fraction",
    "data.split_seed",
    "data.crop_padding",
    "data.resized_crop",
    "data.flip",
    "model.arch",
    "optim.optimizer",
    "train.dtype",
    "train.seed",
)
"""Keys that must be the same on resume, for another value would make another run; all others may differ."""


def capture(learner: Learner, position: Position, config: Config, *, accuracy: float | None) -> Checkpoint:
    """Return a checkpoint of ``learner`` at ``position``; its tensors still are the learner's own."""
    tensors: Tensors = {
        "model": learner.model.state_dict(),
        "optimizer": _named_optimizer_state(learner.optimizer, learner.model),
    }
    if learner.ema:
        tensors["ema"] = learner.ema.module.state_dict() | {"n_averaged": learner.ema.n_averaged}
    identity = identity_of(config) | learner.data
    facts = {
        "seed": config.train.seed,
        "world_size": learner.ranks.world.size,
        "backend": learner.strategy.name,
        "sampler_version": sampler.VERSION,
        "scaler": learner.scaler.state_dict(),
        "identity": identity,
        "identity_sha256": hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        "may_differ": "every key of config.toml that is not in identity",
    }
    header = Header(position, None if accuracy is None else Metric("accuracy", accuracy), facts)
    return Checkpoint({file: _plain(named) for file, named in tensors.items()}, header)


def restore(learner: Learner, found: Checkpoint | None) -> Position:
    """Bring ``learner`` to where ``found`` was captured and return its position; all ranks must call this.

    Args:
        learner: freshly built, on each rank.
        found: on rank 0, the checkpoint; None there to start from the beginning. Ignored on other ranks.
    """
    ranks = learner.ranks
    shared = share_json(
        ranks,
        found and {"position": found.header.position, "facts": found.header.facts, "shapes": _shapes(found.tensors)},
    )
    if shared is None:
        return Position()
    facts = shared["facts"]
    tensors = _share_tensors(ranks, found.tensors if found else None, shared["shapes"])
    learner.model.load_state_dict(tensors["model"])
    _load_optimizer_state(learner.optimizer, learner.model, tensors["optimizer"])
    if facts["scaler"]:  # empty where the run used none so far
        learner.scaler.load_state_dict(facts["scaler"])
    if learner.ema:
        # A run that had no average so far starts one from its weights.
        average = tensors.get("ema", {**tensors["model"], "n_averaged": learner.ema.n_averaged})
        learner.ema.n_averaged.copy_(average.pop("n_averaged"))
        learner.ema.module.load_state_dict(average)
    return Position(*shared["position"])


def identity_of(config: Config) -> dict[str, Any]:
    """Return the values of the keys that must be the same on resume."""
    return {key: attrgetter(key)(config) for key in IDENTITY}


def check_resumable(found: Checkpoint, config: Config, learner: Learner) -> None:
    """Make sure that ``found`` is of the run that ``config`` describes, on the data that ``learner`` was built for.

    Raises:
        ConfigError: if not, naming each key and both values.
    """
    facts = found.header.facts
    if facts["sampler_version"] != sampler.VERSION:
        raise ConfigError(
            f"the checkpoint orders samples by version {facts['sampler_version']}, this trainer by version "
            f"{sampler.VERSION}: it cannot continue in mid-epoch. Use the trainer that wrote it."
        )
    before, now = facts["identity"], identity_of(config) | learner.data
    changed = [
        f"{key} was {before.get(key)!r} and is {value!r}" for key, value in now.items() if before.get(key) != value
    ]
    if changed:
        raise ConfigError(f"cannot resume: {'; '.join(changed)}. Set it back, or start anew in another --output-dir.")


def _plain(named: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in named.items()}


def _named_optimizer_state(optimizer: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimiser's tensors as "exp_avg/conv1.weight" and so on."""
    return {
        f"{key}/{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def _load_optimizer_state(optimizer: Optimizer, model: nn.Module, named: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    numbers = {name: number for number, name in enumerate(parameters)}
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, value in named.items():
        key, _, name = full_name.partition("/")
        if value.shape == parameters[name].shape:
            # Fused optimisers walk through memory: the state must be laid out as the parameter is (channels_last).
            value = torch.empty_like(parameters[name], dtype=value.dtype).copy_(value)  # noqa: PLW2901
        state.setdefault(numbers[name], {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


Shapes = dict[str, dict[str, tuple[list[int], str]]]


def _shapes(tensors: Tensors) -> Shapes:
    return {
        file: {name: (list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in named.items()}
        for file, named in tensors.items()
    }


def _share_tensors(ranks: Communicator, tensors: Tensors | None, shapes: Shapes) -> Tensors:
    """Return rank 0's ``tensors`` on every rank's device."""
    shared: Tensors = {
        file: {
            name: tensors[file][name].to(ranks.device)
            if tensors
            else torch.empty(shape, dtype=getattr(torch, dtype), device=ranks.device)
            for name, (shape, dtype) in named.items()
        }
        for file, named in shapes.items()
    }
    ranks.broadcast([tensor for named in shared.values() for tensor in named.values()])
    return shared
