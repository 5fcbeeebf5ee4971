"""What a run has trained, read without a trace: no lock is taken, nothing in the run folder changes.

The run may be under way, or its folder read-only, or another user's. Only rank 0 reads checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from torch import Tensor

from slipway.base.bounded_read import read_start
from slipway.base.contract import BEST, CHECKPOINTS, CONFIG, checkpoint_folder
from slipway.base.errors import AllDamagedError, SlipwayError
from slipway.checkpoint.format import MANIFEST, Checkpoint, DamagedError, read_checkpoint
from slipway.checkpoint.header import Header
from slipway.checkpoint.store import CheckpointStore
from trainer.config.cli import Tables, load
from trainer.config.errors import ConfigError, UsageError
from trainer.config.settings import Config, Settings
from trainer.data.sets import Dataset
from trainer.engine.checkpoint import IMAGES, differences, identity_of, is_of_trainer

T = TypeVar("T")

LOOKS = 5
"""How often a checkpoint is looked for that a run under way discards in the meantime."""
AVERAGE = "ema"


@dataclass(frozen=True)
class TrainedRun:
    """Where a trained model is: a run folder, or one checkpoint."""

    path: Path
    """As it was named."""
    best: bool
    """Whether the best checkpoint of a run is meant, not the newest."""
    run: Path | None
    """The run folder; None for a checkpoint that lies elsewhere."""

    @property
    def is_checkpoint(self) -> bool:
        """Whether one checkpoint is named."""
        return self.run != self.path

    def settings(self, config: str, overrides: Tables) -> Settings:
        """Return the settings of the run: of its config.toml, or of the file ``config``, below ``overrides``.

        Raises:
            ConfigError: if there is no such file, or its content is no configuration.
        """
        path = Path(config) if config else self.run and self.run / CONFIG
        if path is None:
            raise ConfigError(
                "missing-config",
                f"{self.path} is a checkpoint outside of a run folder: name a copy of the run's {CONFIG} by --config.",
            )
        try:
            read_start(path, limit=1)  # toml's reader would wait for a FIFO
        except FileNotFoundError as error:
            of_run = f"{self.run} has no {CONFIG}, so no run of the trainer has begun there; --config names a copy."
            raise ConfigError("missing-config", f"there is no {path}." if config else of_run) from error
        except OSError as error:
            raise ConfigError("cannot-read", f"{path} cannot be read: {error.strerror}.") from error
        return load(path, overrides)


def find_source(name: str, *, best: bool) -> TrainedRun:
    """Return what ``name`` names: a run folder, or a checkpoint, also by ``checkpoints/latest`` or ``best``.

    Raises:
        ConfigError: if it is neither.
        UsageError: for the best of one checkpoint.
    """
    path = Path(name)
    if (path / MANIFEST).exists():
        if best:
            raise UsageError("flag-conflict", f"--best chooses from a run folder, and {name} is one checkpoint.")
        folder = path.resolve().parent
        return TrainedRun(path, best, folder.parent if folder.name == CHECKPOINTS else None)
    if not path.is_dir():
        what = "is no folder" if path.exists() else "does not exist"
        raise ConfigError("not-a-run", f"{name} {what}: name a run folder, or a checkpoint of one.")
    if not (path / CHECKPOINTS).is_dir():
        raise ConfigError(
            "not-a-run", f"{name} is neither a run folder (with {CHECKPOINTS}/) nor a checkpoint (with {MANIFEST})."
        )
    return TrainedRun(path, best, path)


def read_trained(source: TrainedRun) -> tuple[Path, Checkpoint]:
    """Return the checkpoint that ``source`` means, and its path: of a run, the newest valid one, or the best.

    Raises:
        ConfigError: if there is none, or what is there is damaged, or not the trainer's.
        SlipwayError: if the disk does not answer.
    """
    try:
        path, found = _read(source)
    except AllDamagedError as error:
        raise ConfigError("damaged-checkpoint", f"every checkpoint of {source.path} is damaged.") from error
    except OSError as error:
        raise SlipwayError(
            "cannot-read", f"{error.filename or source.path} cannot be read: {error.strerror or error}."
        ) from error
    if not is_of_trainer(found):
        raise ConfigError(
            "checkpoint-of-script",
            f"{path} is of a script with a Session, not of the trainer: that script evaluates it, "
            "and `slipway export` writes its weights.",
        )
    return path, found


def _read(source: TrainedRun) -> tuple[Path, Checkpoint]:
    if source.is_checkpoint:
        path, found = _named(source.path)
    elif source.best:
        link = source.path / CHECKPOINTS / BEST
        if not link.exists():
            raise ConfigError("no-best-checkpoint", f"{source.path} has no best checkpoint yet: nothing was evaluated.")
        path, found = _while_it_is_replaced(link.resolve, lambda: _named(link.resolve()))
    else:
        store = CheckpointStore(source.path / CHECKPOINTS, keep=1)
        newest = _while_it_is_replaced(store.newest_folder, store.newest)
        if newest is None:
            raise ConfigError(
                "no-checkpoint",
                f"{source.path} has no checkpoint yet: the first one is written at the end of an epoch.",
            )
        path, found = store.path / checkpoint_folder(newest.header.position.step), newest
    return path, found


def _named(path: Path) -> tuple[Path, Checkpoint]:
    try:
        return path, read_checkpoint(path)
    except DamagedError as error:
        raise ConfigError(
            "damaged-checkpoint",
            f"the checkpoint {path} is damaged: {error}. The run folder, without --best, means its newest valid one.",
        ) from error


def _while_it_is_replaced(which: Callable[[], Path | None], read: Callable[[], T]) -> T:
    """Return ``read()``, which is tried again as long as it fails and ``which()`` is another checkpoint by then."""
    for _ in range(LOOKS):
        before = which()
        try:
            return read()
        except (SlipwayError, OSError):
            if which() == before:
                raise
    return read()


class Model(NamedTuple):
    """A model's state out of a checkpoint."""

    state: dict[str, Tensor]
    is_average: bool


def model_of(found: Checkpoint, *, average: bool) -> Model:
    """Return the state_dict of the average of the weights, where there is one and ``average``; else of the weights."""
    if average and AVERAGE in found.tensors:
        return Model({name: value for name, value in found.tensors[AVERAGE].items() if name != "n_averaged"}, True)
    return Model(found.tensors["model"], False)


def check_config(header: Header, config: Config) -> None:
    """Make sure that ``config`` is of the run that wrote a checkpoint with that ``header``.

    Raises:
        ConfigError: if not, naming each key and both values.
    """
    if changed := differences(header, identity_of(config)):
        raise ConfigError("different-run", f"the configuration is of another run than the checkpoint: {changed}.")


def check_data(header: Header, dataset: Dataset, config: Config) -> str:
    """Make sure that the model of a checkpoint with that ``header`` fits ``dataset``, its training part.

    Returns:
        What is to be warned of; "" for nothing.

    Raises:
        ConfigError: if not, saying in what.
    """
    where, identity = f"the data in {config.data.data_dir}", header.facts["identity"]
    for name, found in {"classes": len(dataset.classes), "image shape": list(dataset.shape)}.items():
        if identity[name] != found:
            raise ConfigError(
                "different-data", f"{where} are not those of the model: {name} was {identity[name]} and is {found}."
            )
    classes = header.facts[IMAGES]["classes"]
    for number, (before, now) in enumerate(zip(classes, dataset.classes, strict=True)):
        if before != now:
            raise ConfigError(
                "different-data", f"{where} are not those of the model: class {number} was {before!r} and is {now!r}."
            )
    if identity["training samples"] != len(dataset):
        return (
            f"{where} have {len(dataset)} training samples, and the run had {identity['training samples']}: where the "
            "validation set is split from them, it may hold images that the model was trained on"
        )
    return ""
