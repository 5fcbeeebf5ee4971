"""A run's checkpoint store: the links ``latest`` and ``best``, retention, and fallback from damaged checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from slipway.base.contract import BEST, CHECKPOINTS, LATEST, checkpoint_folder, checkpoint_step
from slipway.base.errors import (
    AllDamagedError,
    CannotReadError,
    DamagedBestError,
    DamagedCheckpointError,
    NoCheckpointError,
    OlderCheckpointError,
    is_retryable,
    warn,
)
from slipway.base.files import replace_symlink
from slipway.base.slugs import EXIT_FAILED
from slipway.checkpoint.format import (
    MANIFEST,
    Checkpoint,
    DamagedError,
    discard,
    is_copied,
    make_temporary,
    misnamed,
    publish,
    read_checkpoint,
    read_header,
    recover,
    remove,
    sync_files,
    verify,
    write_checkpoint,
    write_manifest,
    write_tensors,
)
from slipway.checkpoint.header import Header, Metric
from slipway.checkpoint.sharded_save import ShardedSave

log = logging.getLogger(__name__)


class CheckpointStore:
    """The folder ``checkpoints`` of a run."""

    def __init__(self, path: Path, *, keep: int, check_owner: Callable[[], None] | None = None) -> None:
        """Use the folder ``path``.

        Args:
            path: the folder, which may not exist yet.
            keep: number of newest checkpoints to keep, in addition to the best.
            check_owner: raises an error if this process no longer owns the run folder; called before any change.
        """
        self.path = path
        self._keep = keep
        self._check_owner = check_owner

    def add(self, checkpoint: Checkpoint, sharded: ShardedSave | None = None) -> None:
        """Write ``checkpoint``, update ``latest`` and ``best``, and remove checkpoints that are not to be kept.

        Args:
            checkpoint: the checkpoint, without shards.
            sharded: the save of its shards, in a folder from ``begin``; the function waits until all are written.
        """
        if sharded:
            self._add_sharded(checkpoint, sharded)
            return
        self._clear()
        path = self.path / checkpoint_folder(checkpoint.header.position.step)
        write_checkpoint(path, checkpoint)
        self._update_latest_and_prune(path)

    def _add_sharded(self, checkpoint: Checkpoint, sharded: ShardedSave) -> None:
        try:
            files = write_tensors(sharded.folder, checkpoint.tensors)
            write_manifest(sharded.folder, checkpoint.header, files, sharded.wait())
            self.commit(sharded.folder, checkpoint.header.position.step)
        except BaseException:
            shutil.rmtree(sharded.folder, ignore_errors=True)
            raise

    def begin(self, step: int) -> Path:
        """Return an empty folder in which the caller writes the checkpoint of ``step``; see ``commit``."""
        self._clear()
        return make_temporary(self.path / checkpoint_folder(step))

    def commit(self, temporary: Path, step: int) -> Path:
        """Publish the folder that ``begin`` returned as the checkpoint of ``step``; return the checkpoint's path."""
        if self._check_owner:
            self._check_owner()
        sync_files(temporary)
        path = self.path / checkpoint_folder(step)
        publish(temporary, path)
        self._update_latest_and_prune(path)
        return path

    def _clear(self) -> None:
        """Remove hidden folders of an attempt that was killed during a save."""
        if self._check_owner:
            self._check_owner()
        for leftover in self.path.glob(".step_*"):
            remove(leftover)

    def _update_latest_and_prune(self, path: Path) -> None:
        """Point ``latest`` to ``path``, update ``best``, and remove checkpoints that are not to be kept."""
        _link(self.path / LATEST, path.name)
        self._update_best()
        kept = {(self.path / link).resolve().name for link in (LATEST, BEST)}
        for old in self.newest_first()[self._keep :]:
            if old.name not in kept:
                discard(old)

    def newest(
        self, *, with_shards: bool = True, damaged: Mapping[Path, str] = MappingProxyType({})
    ) -> Checkpoint | None:
        """Return the newest valid checkpoint, skipping damaged ones with a warning; None if there are no checkpoints.

        Args:
            with_shards: see ``verify``.
            damaged: checkpoints of which the caller knows that they are damaged, and how.

        Raises:
            AllDamagedError: if there are checkpoints but all are damaged.
            OSError: if the disk does not respond.
        """
        candidates = self.newest_first()
        for path in candidates:
            try:
                if path not in damaged:
                    return read_checkpoint(path, with_shards=with_shards)
                fault = damaged[path]
            except DamagedError as error:
                fault = str(error)
            warn(log, "damaged-checkpoint", "checkpoint %s is damaged: %s; trying the previous one", path, fault)
        if candidates:
            raise AllDamagedError(count=len(candidates), folder=self.path)
        return None

    def newest_header(self) -> Header | None:
        """Return the header of the newest checkpoint whose manifest is valid, without reading its tensors.

        This changes nothing on disk: it reads misnamed checkpoints without renaming them; see ``misnamed``.

        Raises:
            AllDamagedError: if there are checkpoints but no manifest is valid.
            CannotReadError: if the folder or a manifest cannot be read.
        """
        with reading(self.path):
            named = {path.name: path for path in self.newest_first()} | misnamed(self.path)
            for name in sorted(named, key=lambda name: checkpoint_step(name) or 0, reverse=True):
                try:
                    return read_header(named[name])
                except DamagedError:
                    continue
        if named:
            raise AllDamagedError(count=len(named), folder=self.path)
        return None

    def set_aside_after(self, step: int) -> None:
        """Rename the checkpoints after ``step``, where the run continues: they are damaged, or were undone.

        Otherwise they would count as the newest again, and new checkpoints would be removed before them. ``latest`` and
        ``best`` then point to the remaining checkpoints, even if the last attempt was killed before it set them.
        """
        beyond = [path for path in self.newest_first() if (checkpoint_step(path.name) or 0) > step]
        for path in beyond:
            _set_aside(path)
        for newest in self.newest_first()[:1]:
            _link(self.path / LATEST, newest.name)
        self._update_best()

    def is_newest(self, path: Path) -> bool:
        """Return whether ``path`` is the run's newest checkpoint."""
        return path.resolve() in self.newest_first()[:1]

    def newest_folder(self) -> Path | None:
        """Return the newest checkpoint's folder, valid or not; None if there are no checkpoints."""
        return next(iter(self.newest_first()), None)

    def newest_first(self) -> list[Path]:
        """Return the folders of all checkpoints, valid or not, the newest first.

        Raises:
            OSError: if they cannot be listed.
        """
        try:
            entries = [*self.path.iterdir()]  # glob would treat an unreadable folder as empty
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [(step, path.resolve()) for path in entries if (step := checkpoint_step(path.name)) is not None]
        return [path for _, path in sorted(found, reverse=True)]

    def _update_best(self) -> None:
        """Point ``best`` to the checkpoint with the best metric, if any has one."""
        try:
            best = _best_of(self.newest_first())
        except OSError:  # the disk does not respond, so the best checkpoint is unknown
            return
        _link(self.path / BEST, best.name if best else None)

    def best(self) -> Checkpoint:
        """Return the checkpoint to which ``best`` points.

        Raises:
            DamagedBestError: if it is damaged; the error names the best valid checkpoint instead.
            OSError: if the disk does not respond.
        """
        path = (self.path / BEST).resolve()
        try:
            return read_checkpoint(path)
        except DamagedError as error:
            valid = [each for each in self.newest_first() if each != path and _is_valid(each)]
            left = "No other checkpoint is valid."
            if valid:
                next_best = _best_of(valid)
                left = f"The next best is {next_best}." if next_best else f"The newest valid checkpoint is {valid[0]}."
            raise DamagedBestError(path=path, reason=error, left=left) from error


def _best_of(newest_first: Iterable[Path]) -> Path | None:
    """Return the checkpoint with the best metric, the oldest of equal ones; None if none was evaluated."""
    best: tuple[Path, Metric] | None = None
    for path in newest_first:
        with contextlib.suppress(DamagedError):
            metric = read_header(path).metric
            if metric and math.isfinite(metric.value) and (best is None or not best[1].is_better_than(metric)):
                best = path, metric
    return best[0] if best else None


def _is_valid(path: Path) -> bool:
    try:
        verify(path)
    except (DamagedError, OSError):
        return False
    return True


def _link(link: Path, target: str | None) -> None:
    """Point ``link`` to ``target``, or remove it for None; set aside a copied checkpoint in its place."""
    if is_copied(link):
        _set_aside(link)
    if target:
        replace_symlink(link, target)
    else:
        link.unlink(missing_ok=True)


def _set_aside(path: Path) -> None:
    """Rename the checkpoint ``path`` so that it no longer counts, and warn."""
    names = (path.with_name(f"{path.name}.set-aside.{number}") for number in itertools.count(1))
    aside = path.rename(next(name for name in names if not name.exists()))
    warn(log, "checkpoint-set-aside", "checkpoint %s is kept as %s", path, aside.name)


def find_checkpoint(
    resume: str | None,
    store: CheckpointStore,
    *,
    repair: bool = True,
    with_shards: bool = True,
    damaged: Mapping[Path, str] = MappingProxyType({}),
) -> Checkpoint | None:
    """Return the checkpoint that ``resume`` names, or None to start from the beginning.

    Args:
        resume: None for no checkpoint, "auto" for the newest in ``store``, if any, or the path of a checkpoint or run.
        store: the run folder's own store.
        repair: whether to rename misnamed checkpoints to their own names; see ``misnamed``.
        with_shards: see ``verify``.
        damaged: see ``CheckpointStore.newest``.

    Raises:
        RunError: if the path holds no checkpoint, or the checkpoint is damaged or cannot be read.
    """
    if not resume:
        return None
    with reading(store.path):
        if repair:
            recover(store.path)
        if resume == "auto":
            return store.newest(with_shards=with_shards, damaged=damaged)
        path = Path(resume)
        within = path.resolve().parent == store.path.resolve()
        own = None if within else store.newest()
    if own:  # a requeued job passes the same path again
        warn(log, "checkpoint-ignored", "%s is ignored, because this run already has its own checkpoints", path)
        return own
    if within and (path / MANIFEST).exists() and not store.is_newest(path):
        raise OlderCheckpointError(path=path)
    return read_newest(path)


def read_newest(path: Path) -> Checkpoint:
    """Return the checkpoint ``path``, or the newest valid checkpoint of the run folder ``path``.

    Raises:
        RunError: if there is no checkpoint, or it is damaged or cannot be read.
    """
    with reading(path):
        if (path / MANIFEST).exists():
            try:
                return read_checkpoint(path)
            except DamagedError as error:
                raise DamagedCheckpointError(path=path, reason=error) from error
        found = CheckpointStore(path / CHECKPOINTS, keep=1).newest()
    if found is None:
        raise NoCheckpointError(path=path, manifest=MANIFEST)
    return found


def read_best(checkpoints: Path) -> Checkpoint:
    """Return the checkpoint with the best metric in a run's folder ``checkpoints``.

    Raises:
        RunError: if it is damaged or cannot be read.
    """
    with reading(checkpoints):
        return CheckpointStore(checkpoints, keep=1).best()


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise a CannotReadError for an OSError in the body, which reads ``path``; retryable if the OSError is."""
    try:
        yield
    except OSError as error:
        failure = CannotReadError(path=error.filename or path, reason=error.strerror or error)
        if is_retryable(error):
            failure.retryable, failure.exit_code = True, EXIT_FAILED
        raise failure from error
