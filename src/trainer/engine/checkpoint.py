"""From a learner to a checkpoint of slipway, and back, on every rank."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from slipway.base.errors import warn
from slipway.checkpoint import stateful
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.stateful import Stateful
from trainer.config.errors import ConfigError
from trainer.config.settings import Config, experiment
from trainer.data import order
from trainer.data.seeds import StepSeeder
from trainer.data.sets import Dataset
from trainer.engine.learner import Learner

log = logging.getLogger(__name__)

IDENTITY = (
    "data.dataset",
    "data.image_size",
    "data.resize",
    "data.normalise",
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


IMAGES = "images"
"""Fact of a checkpoint: what the model takes and what its outputs mean."""


ORDER = "sampler_version"
"""Fact of a checkpoint: how the order of an epoch is drawn, of trainer.data.order.VERSIONS."""


CONFIG = "config"
"""Fact of a checkpoint: the experiment, as config.toml has it."""


def images_of(dataset: Dataset) -> dict[str, Any]:
    """Return what a checkpoint says of the images that the model was trained on, so that it is of use by itself.

    mean and std are those of each channel, of values from 0 to 1; JSON keeps all digits of a float.
    """
    mean, std = (values.tolist() for values in dataset.mean_std)
    return {"shape": list(dataset.shape), "classes": list(dataset.classes), "mean": mean, "std": std}


def facts(learner: Learner, config: Config, *, order_version: int) -> dict[str, Any]:
    """Return what a checkpoint must say of the run that ``config`` describes to be resumed from."""
    identity = identity_of(config) | learner.data
    return {
        "seed": config.train.seed,
        "world_size": learner.comm.world.size,
        "backend": learner.strategy.name,
        ORDER: order_version,
        "randomness_version": learner.randomness,
        "identity": identity,
        "identity_sha256": hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        "may_differ": "every key of config.toml that is not in identity",
        CONFIG: _as_saved(config),
    }


def capture(learner: Learner, header: Header) -> Checkpoint:
    """Return a checkpoint of ``learner``; its tensors still are the learner's own."""
    return stateful.capture(_components(learner), header)


def restore(learner: Learner, found: Checkpoint | None) -> Header:
    """Bring ``learner`` to where ``found`` was captured and return its header; all ranks must call this.

    Args:
        learner: freshly built, on each rank.
        found: on rank 0, the checkpoint; None there to start from the beginning. Ignored on other ranks.
    """
    restored = stateful.restore(_components(learner), found, learner.comm)
    if restored is None:
        return Header(Position())
    if learner.ema and "ema" in restored.missing:  # the run had no average so far
        learner.ema.module.load_state_dict(learner.model.state_dict())
    learner.use_randomness(restored.header.facts["randomness_version"])
    if learner.pipeline and learner.randomness == StepSeeder.version:
        warn(
            log,
            "different-random-numbers",
            "the checkpoint is of a version that draws random numbers step by step: in stages, dropout and the like "
            "draw others than they would in the whole model",
        )
    return restored.header


def _components(learner: Learner) -> dict[str, Stateful]:
    parts: dict[str, Stateful] = {
        "model": learner.model,
        "optimizer": NamedOptimizer(learner.optimizer, learner.model),
    }
    if learner.scaler.is_enabled():
        parts["scaler"] = learner.scaler
    if learner.ema:
        parts["ema"] = Average(learner.ema)
    return parts


def identity_of(config: Config) -> dict[str, Any]:
    """Return the values of the keys that must be the same on resume."""
    return {key: attrgetter(key)(config) for key in IDENTITY}


def is_of_trainer(found: Checkpoint) -> bool:
    """Return whether the trainer wrote it, and no script with a Session."""
    return "identity" in found.header.facts and "model" in found.tensors


def differences(header: Header, now: Mapping[str, Any]) -> str:
    """Return in which of the keys ``now`` a checkpoint with that ``header`` has another value; "" if in none.

    A checkpoint that was written before there was a key is of a run that did what is the key's default today.
    """
    before = identity_of(Config()) | header.facts["identity"]
    changed = {key: value for key, value in now.items() if before.get(key) != value}
    return "; ".join(f"{key} was {before.get(key)!r} and is {value!r}" for key, value in changed.items())


def changes(header: Header, config: Config, *, ranks: int) -> str:
    """Return what differs from when a checkpoint with that ``header`` was written, and may; "" if nothing does."""
    before: dict[str, Any] = {"number of ranks": header.facts["world_size"]}
    now: dict[str, Any] = {"number of ranks": ranks}
    if CONFIG in header.facts:
        for keys, tables in ((before, header.facts[CONFIG]), (now, _as_saved(config))):
            keys |= {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}
    return "; ".join(
        f"{key} was {before.get(key, 'not set')!r} and is {now.get(key, 'not set')!r}"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    )


def _as_saved(config: Config) -> dict[str, dict[str, Any]]:
    """Return the tables of config.toml with lists for tuples, as JSON gives them back."""
    tables: dict[str, dict[str, Any]] = json.loads(json.dumps(experiment(config)))
    return tables


def require_of_trainer(found: Checkpoint) -> None:
    """Raise a ConfigError where there is nothing that the trainer could resume."""
    if not is_of_trainer(found):
        raise ConfigError(
            "checkpoint-of-script",
            "cannot resume: the checkpoint is of a script with a Session, not of the trainer. Continue it with that "
            "script, or start anew in another --output-dir.",
        )


def check_resumable(found: Checkpoint, config: Config, learner: Learner) -> None:
    """Make sure that ``found`` is of the run that ``config`` describes, on the data that ``learner`` was built for.

    Raises:
        ConfigError: if not, naming each key and both values.
    """
    facts = found.header.facts
    if facts[ORDER] not in order.VERSIONS:
        raise ConfigError(
            "newer-format",
            f"the checkpoint orders samples by version {facts[ORDER]}, and this trainer knows "
            f"{' and '.join(map(str, order.VERSIONS))}: it cannot continue in mid-epoch. Use the one that wrote it.",
        )
    if changed := differences(found.header, identity_of(config) | learner.data):
        raise ConfigError(
            "different-run", f"cannot resume: {changed}. Set it back, or start anew in another --output-dir."
        )


class NamedOptimizer:
    """An optimiser whose state goes by the names of parameters, as "exp_avg/conv1.weight", and not by their order."""

    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        """Name the parameters of ``optimizer`` as ``model`` does."""
        self._optimizer = optimizer
        self._model = model

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors that the optimiser keeps for each parameter."""
        return {
            f"{key}/{name}": value
            for name, parameter in self._model.named_parameters()
            for key, value in self._optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Take them over; learning rate and the like stay as configured."""
        parameters = dict(self._model.named_parameters())
        in_order = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        places = {id(parameter): place for place, parameter in enumerate(in_order)}
        state: dict[int, dict[str, Tensor]] = {}
        for full_name, value in state_dict.items():
            key, _, name = full_name.partition("/")
            if value.shape == parameters[name].shape:
                # Fused optimisers walk through memory: the state must be laid out as the parameter is (channels_last).
                value = torch.empty_like(parameters[name], dtype=value.dtype).copy_(value)  # noqa: PLW2901
            state.setdefault(places[id(parameters[name])], {})[key] = value
        numbered = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": numbered})


class Average:
    """A moving average whose state is that of the averaged model, by the names that the model has."""

    def __init__(self, ema: AveragedModel) -> None:
        """Wrap ``ema``."""
        self._ema = ema

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages, and over how many steps they are."""
        return self._ema.module.state_dict() | {"n_averaged": self._ema.n_averaged}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Take them over."""
        averages = dict(state_dict)
        self._ema.n_averaged.copy_(averages.pop("n_averaged"))
        stateful.load_module(self._ema.module, averages)
