"""Capture of a learner in a checkpoint, restore from it, and the checks before a resume."""

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
from slipway.data.sampler import require_order_version
from slipway.rng.permutation import ORDER_VERSION
from trainer.config.errors import ConfigError
from trainer.config.settings import Config, experiment
from trainer.data.sets import Dataset
from trainer.engine.layer_seeding import StepSeeder
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
"""Keys that must be the same on resume, because another value would make another run; all others may differ."""


IMAGES = "images"
"""Checkpoint fact: the model's inputs and the meaning of its outputs."""


CONFIG = "config"
"""Checkpoint fact: the experiment, with the content of config.toml."""


def image_facts(dataset: Dataset) -> dict[str, Any]:
    """Describe the images that the model was trained on, so that the checkpoint can be used alone.

    mean and std are per channel, for values from 0 to 1. JSON keeps all digits of a float.
    """
    mean, std = (values.tolist() for values in dataset.mean_std)
    return {"shape": list(dataset.shape), "classes": list(dataset.classes), "mean": mean, "std": std}


def facts(learner: Learner, config: Config) -> dict[str, Any]:
    """Return the facts that a checkpoint of the run described by ``config`` must hold for a resume."""
    identity = identity_values(config) | learner.data
    return {
        "seed": config.train.seed,
        "world_size": learner.comm.world.size,
        "backend": learner.strategy.name,
        "order": ORDER_VERSION,
        "randomness_version": learner.randomness,
        "identity": identity,
        "identity_sha256": hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        "may_differ": "every key of config.toml that is not in identity",
        CONFIG: _as_saved(config),
    }


def capture(learner: Learner, header: Header) -> Checkpoint:
    """Return a checkpoint of ``learner`` that shares the learner's tensors."""
    return stateful.capture(_components(learner), header)


def restore(learner: Learner, found: Checkpoint | None) -> Header:
    """Restore ``learner`` from the checkpoint ``found`` and return its header; all ranks must call this.

    Args:
        learner: newly built, on each rank.
        found: on rank 0, the checkpoint, or None to start from the beginning. Ignored on other ranks.
    """
    restored = stateful.restore(_components(learner), found, learner.comm)
    if restored is None:
        return Header(Position())
    if learner.ema and "ema" in restored.missing:  # the run had no moving average so far
        learner.ema.module.load_state_dict(learner.model.state_dict())
    learner.use_randomness(restored.header.facts["randomness_version"])
    if learner.pipeline and learner.randomness == StepSeeder.version:
        warn(
            log,
            "different-random-numbers",
            "the checkpoint's version draws random numbers per step: in pipeline stages, dropout and similar layers "
            "draw other numbers than in the whole model",
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


def identity_values(config: Config) -> dict[str, Any]:
    """Return the keys that must be the same on resume, with their values."""
    return {key: attrgetter(key)(config) for key in IDENTITY}


def written_by_trainer(found: Checkpoint) -> bool:
    """Return whether the trainer wrote the checkpoint, rather than a script with a Session."""
    return "identity" in found.header.facts and "model" in found.tensors


def differences(header: Header, now: Mapping[str, Any]) -> str:
    """Describe the keys in ``now`` that differ from the checkpoint with this ``header``; "" if none differs.

    A checkpoint that is older than a key counts as one with the key's default.
    """
    before = identity_values(Config()) | header.facts["identity"]
    changed = {key: value for key, value in now.items() if before.get(key) != value}
    return "; ".join(f"{key} was {before.get(key)!r} and is {value!r}" for key, value in changed.items())


def changes(header: Header, config: Config, *, ranks: int) -> str:
    """Describe the settings that changed since the checkpoint with this ``header``; "" if none did."""
    before: dict[str, Any] = {"number of ranks": header.facts["world_size"]}
    now: dict[str, Any] = {"number of ranks": ranks}
    for keys, tables in ((before, header.facts[CONFIG]), (now, _as_saved(config))):
        keys |= {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}
    return "; ".join(
        f"{key} was {before.get(key, 'not set')!r} and is {now.get(key, 'not set')!r}"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    )


def _as_saved(config: Config) -> dict[str, dict[str, Any]]:
    """Return the tables of config.toml with lists instead of tuples, as JSON returns them."""
    tables: dict[str, dict[str, Any]] = json.loads(json.dumps(experiment(config)))
    return tables


def require_trainer_checkpoint(found: Checkpoint) -> None:
    """Raise a ConfigError if the trainer did not write the checkpoint and so cannot resume from it."""
    if not written_by_trainer(found):
        raise ConfigError(
            "checkpoint-of-script",
            "cannot resume: a script with a Session wrote the checkpoint, not the trainer. Continue with that script, "
            "or start a new run in another --output-dir.",
        )


def check_resumable(found: Checkpoint, config: Config, learner: Learner) -> None:
    """Check that ``found`` belongs to the run that ``config`` describes, with the data that ``learner`` was built for.

    Raises:
        ConfigError: if not. The message lists each key with both values.
        StateMismatchError: if another version of slipway drew the order.
    """
    require_order_version(found.header.facts.get("order", "3 or older"))
    if changed := differences(found.header, identity_values(config) | learner.data):
        raise ConfigError(
            "different-run", f"cannot resume: {changed}. Restore the value, or start a new run in another --output-dir."
        )


class NamedOptimizer:
    """Optimizer state with keys by parameter name, such as "exp_avg/conv1.weight", instead of by position."""

    def __init__(self, optimizer: Optimizer, model: nn.Module) -> None:
        """Wrap ``optimizer``, whose parameters have the names that they have in ``model``."""
        self._optimizer = optimizer
        self._model = model

    def state_dict(self) -> dict[str, Tensor]:
        """Return the tensors that the optimizer keeps for each parameter."""
        return {
            f"{key}/{name}": value
            for name, parameter in self._model.named_parameters()
            for key, value in self._optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        }

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Load the tensors; the learning rate and other hyperparameters stay as configured."""
        parameters = dict(self._model.named_parameters())
        in_order = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        places = {id(parameter): place for place, parameter in enumerate(in_order)}
        state: dict[int, dict[str, Tensor]] = {}
        for full_name, value in state_dict.items():
            key, _, name = full_name.partition("/")
            if value.shape == parameters[name].shape:
                # Fused optimizers walk through memory: the state must have the parameter's layout (channels_last).
                value = torch.empty_like(parameters[name], dtype=value.dtype).copy_(value)  # noqa: PLW2901
            state.setdefault(places[id(parameters[name])], {})[key] = value
        numbered = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": numbered})


class Average:
    """Moving average of the model's weights, with state keys named as in the model."""

    def __init__(self, ema: AveragedModel) -> None:
        """Wrap ``ema``."""
        self._ema = ema

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages and the number of steps they cover."""
        return self._ema.module.state_dict() | {"n_averaged": self._ema.n_averaged}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Load the averages and their number of steps."""
        averages = dict(state_dict)
        self._ema.n_averaged.copy_(averages.pop("n_averaged"))
        stateful.load_module(self._ema.module, averages)
