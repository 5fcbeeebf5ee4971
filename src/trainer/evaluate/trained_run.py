"""Read-only access to trained runs: takes no lock and changes nothing in the run folder.

The run may be active, and its folder may be read-only or another user's. Only rank 0 reads checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from torch import Tensor

from slipway.base.bounded_read import read_head
from slipway.base.contract import BEST, CHECKPOINTS, CONFIG, checkpoint_folder
from slipway.base.errors import AllDamagedError, SlipwayError
from slipway.checkpoint.format import MANIFEST, Checkpoint, DamagedError, read_checkpoint
from slipway.checkpoint.header import Header
from slipway.checkpoint.store import CheckpointStore
from trainer.config.cli import Tables, load
from trainer.config.errors import ConfigError
from trainer.config.settings import Config, Settings
from trainer.data.sets import Dataset
from trainer.engine.checkpoint import IMAGES, differences, identity_values, written_by_trainer

T = TypeVar("T")

LOOKS = 5
"""Number of read attempts while an active run replaces the checkpoint."""
AVERAGE = "ema"


@dataclass(frozen=True)
class TrainedRun:
    """Location of a trained model: a run folder or one checkpoint."""

    path: Path
    """The path as the user gave it."""
    best: bool
    """Whether to use the run's best checkpoint instead of the newest."""
    run: Path | None
    """The run folder; None for a checkpoint outside a run folder."""

    @property
    def is_checkpoint(self) -> bool:
        """Whether ``path`` is a single checkpoint."""
        return self.run != self.path

    def settings(self, config: str, overrides: Tables) -> Settings:
        """Return the settings in the run's config.toml, or in the file ``config`` if not "", with ``overrides``.

        Raises:
            ConfigError: if the file does not exist or is not a valid configuration.
        """
        path = Path(config) if config else self.run and self.run / CONFIG
        if path is None:
            raise ConfigError(
                "missing-config",
                f"{self.path} is a checkpoint outside a run folder: pass a copy of the run's {CONFIG} with --config.",
            )
        try:
            read_head(path, limit=1)  # the TOML reader would block on a FIFO
        except FileNotFoundError as error:
            of_run = f"{self.run} has no {CONFIG}: no trainer run has begun there. Pass a copy with --config."
            raise ConfigError("missing-config", f"{path} does not exist." if config else of_run) from error
        except OSError as error:
            raise ConfigError("cannot-read", f"{path} cannot be read: {error.strerror}.") from error
        return load(path, overrides)


def find_source(name: str, *, best: bool) -> TrainedRun:
    """Return the run folder or checkpoint at path ``name``, which may be a link: ``checkpoints/latest`` or ``best``.

    Raises:
        ConfigError: if ``name`` is neither a run folder nor a checkpoint, or ``best`` is set for a single checkpoint.
    """
    path = Path(name)
    if (path / MANIFEST).exists():
        if best:
            raise ConfigError("flag-conflict", f"--best needs a run folder; {name} is a single checkpoint.")
        folder = path.resolve().parent
        return TrainedRun(path, best, folder.parent if folder.name == CHECKPOINTS else None)
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise ConfigError("not-a-run", f"{name} {what}: pass a run folder or one of its checkpoints.")
    if not (path / CHECKPOINTS).is_dir():
        raise ConfigError(
            "not-a-run", f"{name} is neither a run folder (with {CHECKPOINTS}/) nor a checkpoint (with {MANIFEST})."
        )
    return TrainedRun(path, best, path)


def read_trained(source: TrainedRun) -> tuple[Path, Checkpoint]:
    """Return the path and content of the checkpoint that ``source`` selects: for a run, the newest valid or the best.

    Raises:
        ConfigError: if there is no checkpoint, or it is damaged or not from the trainer.
        SlipwayError: if a file cannot be read.
    """
    try:
        path, found = _read(source)
    except AllDamagedError as error:
        raise ConfigError("damaged-checkpoint", f"every checkpoint of {source.path} is damaged.") from error
    except OSError as error:
        raise SlipwayError(
            "cannot-read", f"{error.filename or source.path} cannot be read: {error.strerror or error}."
        ) from error
    if not written_by_trainer(found):
        raise ConfigError(
            "checkpoint-of-script",
            f"{path} is from a user script with a Session, not from the trainer: evaluate it with that script, "
            "or write its weights with `slipway export`.",
        )
    return path, found


def _read(source: TrainedRun) -> tuple[Path, Checkpoint]:
    if source.is_checkpoint:
        path, found = _named(source.path)
    elif source.best:
        link = source.path / CHECKPOINTS / BEST
        if not link.exists():
            raise ConfigError(
                "no-best-checkpoint", f"{source.path} has no best checkpoint yet: the run has not evaluated."
            )
        path, found = _retry_while_replaced(link.resolve, lambda: _named(link.resolve()))
    else:
        store = CheckpointStore(source.path / CHECKPOINTS, keep=1)
        newest = _retry_while_replaced(store.newest_folder, store.newest)
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
            f"the checkpoint {path} is damaged: {error}. Pass the run folder without --best to use the newest valid "
            "checkpoint.",
        ) from error


def _retry_while_replaced(which: Callable[[], Path | None], read: Callable[[], T]) -> T:
    """Return ``read()``; if it fails and ``which()`` has changed meanwhile, try again, up to ``LOOKS`` times."""
    for _ in range(LOOKS):
        before = which()
        try:
            return read()
        except (SlipwayError, OSError):
            if which() == before:
                raise
    return read()


class Model(NamedTuple):
    """A model's state from a checkpoint."""

    state: dict[str, Tensor]
    is_average: bool


def model_of(found: Checkpoint, *, average: bool) -> Model:
    """Return the state_dict of the averaged weights if ``average`` is set and they exist, otherwise of the weights."""
    if average and AVERAGE in found.tensors:
        return Model({name: value for name, value in found.tensors[AVERAGE].items() if name != "n_averaged"}, True)
    return Model(found.tensors["model"], False)


def check_config(header: Header, config: Config) -> None:
    """Check that ``config`` belongs to the run that wrote the checkpoint with ``header``.

    Raises:
        ConfigError: if it does not; the message lists each differing key with both values.
    """
    if changed := differences(header, identity_values(config)):
        raise ConfigError("different-run", f"the configuration and the checkpoint belong to different runs: {changed}.")


def check_data(header: Header, dataset: Dataset, data_dir: str) -> str:
    """Check that the model of the checkpoint with ``header`` fits ``dataset``, the training part of ``data_dir``.

    Returns:
        A warning; "" if there is none.

    Raises:
        ConfigError: if classes or image shape differ; the message states the difference.
    """
    where, identity = f"the data in {data_dir}", header.facts["identity"]
    for name, found in {"classes": len(dataset.classes), "image shape": list(dataset.shape)}.items():
        if identity[name] != found:
            raise ConfigError(
                "different-data", f"{where} do not match the model: {name} was {identity[name]} and is {found}."
            )
    classes = header.facts[IMAGES]["classes"]
    for number, (before, now) in enumerate(zip(classes, dataset.classes, strict=True)):
        if before != now:
            raise ConfigError(
                "different-data", f"{where} do not match the model: class {number} was {before!r} and is {now!r}."
            )
    if identity["training samples"] != len(dataset):
        return (
            f"{where} have {len(dataset)} training samples; the run had {identity['training samples']}. If the "
            "validation set is split from them, it may contain images that the model was trained on"
        )
    return ""
