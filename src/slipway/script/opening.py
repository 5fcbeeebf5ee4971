"""Opening a run folder for a script: signal handlers, ranks, lock, checkpoint to resume, record of the attempt."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from slipway.base import startup_time
from slipway.base.contract import LOCK
from slipway.base.environment import Environment, Launcher, read_environment
from slipway.base.errors import CannotReadError, SessionError, SlipwayError, StateMismatchError
from slipway.base.stop import StopRequest
from slipway.capture.per_rank import GRADIENTS
from slipway.capture.saved_objects import SavedObjects
from slipway.capture.weights import read_weights
from slipway.capture.world_change import require_restorable, warn_of_world_size
from slipway.checkpoint.compile_cache import CompiledCode
from slipway.checkpoint.format import Checkpoint, DamagedError, read_sharded
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.stateful import RANKS, Stateful, capture
from slipway.checkpoint.store import CheckpointStore, find_checkpoint, reading
from slipway.data.workers import shielded_workers
from slipway.dist.collectives import RootOnly, all_gather_json, broadcast_json, raise_on_all_ranks, run_on_root
from slipway.dist.communicator import Communicator
from slipway.dist.data_ranks import DataRanks, find_data_ranks
from slipway.dist.existing_group import adopt_ranks, destroy_group_at_exit
from slipway.rng.continuing_generators import warn_of_continuing_generators
from slipway.run.attempt import Ownership, open_folder
from slipway.run.cause import remove_cause, write_cause
from slipway.run.job import JobFolder
from slipway.run.program import Stopped
from slipway.run.recorder import Recorder, provenance
from slipway.run.run_folder import RunFolder
from slipway.run.trackers import TrackedRun, named_trackers, require_trackers
from slipway.script.identity import (
    SESSION,
    Begun,
    facts_of,
    identify,
    log_if_done,
    record_session_outcome,
    require_unused,
)
from slipway.script.terminal import console_log
from slipway.state.model_state import Model

log = logging.getLogger(__name__)

SHARED_SECONDS = 10.0
"""Seconds that a rank waits to see a file of rank 0 on a shared disk."""


class Joined(NamedTuple):
    """The ranks of a script, and the run folder that rank 0 has locked."""

    comm: Communicator
    environment: Environment
    request: StopRequest
    folder: RunFolder
    ownership: RootOnly[Ownership]


class Opened(NamedTuple):
    """An open run folder with restored objects, on which a session works."""

    comm: Communicator
    environment: Environment
    request: StopRequest
    folder: RunFolder
    recorder: RootOnly[Recorder]
    found: Header
    """Header of the checkpoint from which the objects were restored; at step 0 if the run is new."""
    seed: int
    """The run's seed."""
    objects: SavedObjects
    """The session's objects, restored from the checkpoint."""
    data_ranks: DataRanks
    """The ranks' data-parallel coordinates."""


@contextlib.contextmanager
def open_run(
    components: Mapping[str, Stateful],
    *,
    given: Mapping[str, Any],
    path: str | os.PathLike[str] | None,
    seed: int | None,
    weights: Mapping[str, Path],
    trackers: str | Sequence[str],
    keep: int,
    timeout: float,
) -> Iterator[Opened]:
    """Open the run folder on all ranks, restore ``components`` from its checkpoint, and begin an attempt.

    Args:
        components: the components to save, newly constructed, by name.
        given: the script's objects that the components wrap, by the same names.
        path: the run folder; None for RUN_DIR, or else runs/ and the script's name.
        seed: the run's seed; None for the recorded seed, or else one derived from ``torch.initial_seed()``.
        weights: files with initial weights, by component name; used only if the folder holds no run yet.
        trackers: names of trackers that receive the records, in addition to those of SLIPWAY_TRACKERS.
        keep: number of newest checkpoints to keep, besides the best one.
        timeout: seconds for which the ranks wait for each other.

    Raises:
        RunError: on every rank, if the folder cannot be written or is in use.
        SessionError: on every rank, if the saved run, a file of ``weights`` or a tracker does not fit, or if this
            process has already used the folder.
    """
    with joined_ranks(path, timeout=timeout) as joined:
        comm, folder, environment = joined.comm, joined.folder, joined.environment
        joined.ownership.run(lambda _: require_unused(folder.path, run_dir=environment.run_dir))
        names = named_trackers(trackers, environment.trackers)
        joined.ownership.run(lambda _: require_trackers(names))
        empty = _materialize(components, comm)
        run_on_root(comm, lambda: capture(components, Header(Position())))  # raises for state that cannot be saved
        compiled = CompiledCode(folder.path, environment)
        compiled.unpack(comm.world)
        models = [each for name, each in given.items() if name.startswith("model") and isinstance(each, nn.Module)]
        data_ranks = find_data_ranks(models, comm)
        objects = SavedObjects(components, given, comm, data_ranks)
        if objects.is_sharded:
            require_shared(folder.path, comm)
        found = objects.restore(
            _find(components, folder, comm, data_ranks=data_ranks, facts=facts_of(seed), weights=weights)
        )
        _require_loaded(empty, comm)
        begun = broadcast_json(
            comm, run_on_root(comm, lambda: identify(folder.path, found.facts, seed, is_saved=SESSION in found.facts))
        )
        place = TrackedRun(folder.path, found.position.step, environment.variables)
        recorder = joined.ownership.make(lambda owned: _begin(owned, comm, compiled, begun, place.step, keep=keep))
        try:
            recorder.run(lambda root: root.start_trackers(names, place))
            startup_time.mark(startup_time.RESUME)
            with record_session_outcome(folder.path), warn_of_continuing_generators(given.values()):
                opened = comm, environment, joined.request, folder, recorder, found, begun["seed"], objects, data_ranks
                yield Opened(*opened)
        finally:
            if recorder.on_root:
                recorder.on_root.close()  # while this process still holds the folder's lock


@contextlib.contextmanager
def joined_ranks(path: str | os.PathLike[str] | None, *, timeout: float) -> Iterator[Joined]:
    """Install signal handlers, adopt the script's process group, and lock the run folder.

    Args:
        path: the run folder; None for RUN_DIR, or else runs/ and the script's name.
        timeout: seconds for which the ranks wait for each other.

    Raises:
        RunError: on every rank, if the folder cannot be written or is in use.
        SessionError: if this is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        raise SessionError("session-thread", "a session handles signals: open it in the main thread.")
    environment, folder = read_environment(os.environ), script_run_folder(path)
    try:
        with _joined(environment, folder, timeout=timeout) as joined:
            remove_cause()  # from an earlier session whose error the script has caught
            yield joined
    except SlipwayError as error:
        write_cause(error, folder=JobFolder(folder, environment).folder, variables=environment.variables)
        raise


@contextlib.contextmanager
def _joined(environment: Environment, path: Path, *, timeout: float) -> Iterator[Joined]:
    with contextlib.ExitStack() as stack:
        request = StopRequest()
        stack.enter_context(request.handed_on())
        request.listen()
        if environment.launcher is Launcher.TORCHRUN:
            request.stop_if_launcher_dies()
        stack.callback(request.close)
        stack.enter_context(shielded_workers())
        startup_time.mark(startup_time.IMPORTS)
        comm = adopt_ranks(environment, timeout=timeout)
        startup_time.mark(startup_time.RANKS)
        request.answers = comm.world.is_root
        stack.enter_context(console_log(comm.world))
        if request.inherited:
            log.info("an earlier session of this process received a stop request after its last step: this one stops")
        folder = RunFolder(Path(broadcast_json(comm, str(path))))
        ownership = stack.enter_context(open_folder(folder, environment, comm, may_continue=True))
        startup_time.mark(startup_time.FOLDER)
        try:
            yield Joined(comm, environment, request, folder, ownership)
        except Stopped:
            request.withdraw()
            comm.close()
            destroy_group_at_exit()
            raise
        else:
            if (owned := ownership.on_root) and owned.attempt:
                request.reason = max(request.reason, owned.attempt.stop_request(at_once=True))
            comm.close()


def script_run_folder(path: str | os.PathLike[str] | None) -> Path:
    """Return the absolute path of the run folder: ``path``, or RUN_DIR, or runs/ and the script's name.

    Raises:
        SessionError: if none of them is known, as in a notebook: two notebooks would share a folder.
    """
    name = path or read_environment(os.environ).run_dir
    if not name and not getattr(sys.modules.get("__main__"), "__file__", None):
        raise SessionError(
            "session-arguments",
            "this process runs no script file, so the run folder has no default name: use Session(folder=...).",
        )
    return Path(name or f"runs/{Path(sys.argv[0]).stem or 'session'}").absolute()


def require_shared(folder: Path, comm: Communicator) -> None:
    """Check that all ranks see the run folder that rank 0 has locked, because each writes its shards to it.

    Raises:
        SessionError: on every rank, if one of them sees another folder, or none.
    """
    expected = broadcast_json(comm, _lock_digest(folder))
    deadline = time.monotonic() + SHARED_SECONDS
    while (own := _lock_digest(folder)) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    ranks = [rank for rank, digest in enumerate(all_gather_json(comm, own)) if digest != expected]
    if ranks:
        error = SessionError(
            "folder-not-shared",
            f"rank(s) {', '.join(map(str, ranks))} do not see the run folder {folder} of rank 0, to which each rank "
            "writes its part of a sharded model.",
        )
        error.raised_on_all_ranks = True
        raise error


def _lock_digest(folder: Path) -> str:
    try:
        return hashlib.sha256((folder / LOCK).read_bytes()).hexdigest()
    except OSError:
        return ""


def _materialize(components: Mapping[str, Stateful], comm: Communicator) -> dict[str, Model]:
    """Give models on the meta device memory, and return them; all ranks must call this.

    Raises:
        SessionError: on every rank, if this is not possible on one of them.
    """
    failure, found = None, {}
    try:
        found = {name: part for name, part in components.items() if isinstance(part, Model) and part.materialize()}
    except SessionError as error:
        failure = error
    raise_on_all_ranks(comm, failure)
    return found


def _require_loaded(models: Mapping[str, Model], comm: Communicator) -> None:
    """Check that the ``models``, which were on the meta device, have been loaded; all ranks must call this.

    Raises:
        SessionError: on every rank, if one of them has not been loaded, because this is a new run without weights.
    """
    empty = [name for name, model in models.items() if not model.is_loaded]
    failure = None
    if empty:
        failure = SessionError(
            "meta-tensors", f"{empty[0]} is on the meta device, and this new run has no weights for it."
        )
    raise_on_all_ranks(comm, failure)


def _find(
    components: Mapping[str, Stateful],
    folder: RunFolder,
    comm: Communicator,
    *,
    data_ranks: DataRanks,
    facts: Mapping[str, object],
    weights: Mapping[str, Path],
) -> Checkpoint | None:
    """Return, on rank 0, the checkpoint from which to restore ``components``; None for a new run.

    Rank 0 verifies the files of a checkpoint, and all ranks together its shards.
    """
    damaged: dict[Path, str] = {}

    def find() -> Checkpoint | None:
        store = CheckpointStore(folder.checkpoints, keep=1)
        found = find_checkpoint("auto", store, with_shards=False, damaged=damaged)
        if found:
            _require_fitting(found, components, facts, folder.path)
            require_restorable(found.header, components, data_ranks)
            warn_of_world_size(found.header, comm.world.size)
        return found

    while True:
        found = run_on_root(comm, find)
        path = broadcast_json(comm, str(found.folder) if found and found.sharded else None)
        if path is None or not (fault := _damaged_shard(Path(path), comm)):
            break
        damaged[Path(path)] = fault

    def initial() -> Checkpoint | None:
        if found or not weights:
            return found
        log.info("initial weights from %s", ", ".join(map(str, weights.values())))
        return read_weights(weights, components)

    return run_on_root(comm, initial)


def _damaged_shard(checkpoint: Path, comm: Communicator) -> str:
    """Return how a shard of ``checkpoint`` is damaged; "" if none is. Each rank verifies an equal number of them.

    Raises:
        CannotReadError: on every rank, if one of them cannot read the checkpoint.
    """
    fault, failure = "", None
    try:
        with reading(checkpoint):
            sharded = read_sharded(checkpoint)
            fault = sharded.damaged(rank=comm.world.rank, ranks=comm.world.size) if sharded else ""
    except DamagedError as error:
        fault = str(error)
    except CannotReadError as error:
        failure = error
    raise_on_all_ranks(comm, failure)
    return next(filter(None, all_gather_json(comm, fault)), "")


def _require_fitting(
    found: Checkpoint, components: Mapping[str, Stateful], facts: Mapping[str, object], folder: Path
) -> None:
    """Raise a StateMismatchError if ``found`` has other components or facts than the current session."""
    saved = {name for name in found.components if not name.startswith(RANKS)} - {GRADIENTS}
    differing = [
        f"{name} was {found.header.facts[name]!r} and is {value!r}"
        for name, value in facts.items()
        if found.header.facts.get(name, value) != value
    ]
    differing += [f"{name} was not saved" for name in components if name not in saved]
    differing += [f"{name} was saved and is not passed now" for name in sorted(saved - components.keys())]
    if facts.keys() - found.header.facts.keys():
        differing = ["another program has created it"]
    if differing:
        raise StateMismatchError(
            "different-run",
            f"{folder} holds a different run: {'; '.join(differing)}. Undo the change, or use another run folder.",
        )


def _begin(
    owned: Ownership, comm: Communicator, compiled: CompiledCode, begun: Begun, step: int, *, keep: int
) -> Recorder:
    """Begin an attempt at ``step``; only rank 0 calls this."""
    attempt = owned.begin(provenance={**provenance(comm.world, {}), SESSION: begun}, step=step)
    log_if_done(owned.folder.path, owned.before, begun)
    return Recorder(attempt, compiled, keep=keep, step=step)
