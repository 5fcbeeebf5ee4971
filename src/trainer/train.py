"""Training run from settings to results: build, resume, train, report."""

from __future__ import annotations

import logging
import socket
from operator import attrgetter
from pathlib import Path

from slipway.base import startup_time
from slipway.base.environment import Environment
from slipway.base.stop import Reason, StopRequest
from slipway.checkpoint.compile_cache import CompiledCode
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header
from slipway.checkpoint.store import CheckpointStore, find_checkpoint
from slipway.dist.collectives import all_gather_json, run_on_root
from slipway.dist.communicator import Communicator
from slipway.run.attempt import Ownership, open_folder
from slipway.run.program import Policy, Stopped
from slipway.run.recorder import Recorder
from slipway.run.run import Run
from slipway.run.run_folder import RunFolder
from slipway.run.trackers import TrackedRun, named_trackers, require_trackers
from trainer.build import build_parts
from trainer.config.settings import Settings
from trainer.engine.auto_precision import auto_keys
from trainer.engine.checkpoint import changes, check_resumable, require_trainer_checkpoint, restore
from trainer.engine.learner import Learner
from trainer.engine.memory import explain_out_of_memory, report_peaks
from trainer.engine.profiler import profiler_for, warn_if_missed
from trainer.engine.provenance import begin
from trainer.loop import Training
from trainer.model.compilation import warn_if_not_compiled
from trainer.parallel.device import stage_devices
from trainer.parallel.strategy import Strategy, resolved
from trainer.parallel.threads import set_threads
from trainer.results.dry_run import keep_schedule, temporary_folder
from trainer.trainer_program import TrainerProgram

CHOICE = "split.csv"
"""File with the measurements of --split auto and its choice."""
log = logging.getLogger(__name__)


def run(
    settings: Settings, comm: Communicator, strategy: Strategy, request: StopRequest, environment: Environment
) -> Reason:
    """Train on all ranks; return the reason for an early stop, NONE if training is complete.

    Raises:
        SlipwayError: on every rank, if training cannot continue.
    """
    launch = settings.launch
    folder = RunFolder(Path(launch.output_dir or ""))
    set_threads(launch.threads, comm, omp_threads=environment.threads)
    if launch.selftest:
        from trainer.selftest import run_selftest  # noqa: PLC0415 -- training does not need it

        return run_selftest(settings, comm, strategy, folder, environment)
    if not launch.dry_run:
        return _train(settings, comm, strategy, request, environment, folder=folder, resume_from=folder.checkpoints)
    with temporary_folder(folder, comm, environment, may_continue=bool(launch.resume)) as temporary:
        reason = _train(
            settings, comm, strategy, request, environment, folder=temporary, resume_from=folder.checkpoints
        )
        kept = keep_schedule(temporary, folder) if comm.world.is_root else None
    log.info("dry run: all parts work; %s", f"{kept} shows the schedule" if kept else "no files kept")
    return reason


def _train(
    settings: Settings,
    comm: Communicator,
    strategy: Strategy,
    request: StopRequest,
    environment: Environment,
    *,
    folder: RunFolder,
    resume_from: Path,
) -> Reason:
    """Train in ``folder``, resuming from the checkpoints in ``resume_from``; return the reason for an early stop."""
    launch = settings.launch
    profiler = profiler_for(launch, folder.path, comm.world)
    with (
        open_folder(folder, environment, comm, may_continue=bool(launch.resume)) as ownership,
        explain_out_of_memory(),
    ):
        trackers = named_trackers(["tensorboard"] if settings.run.tensorboard else [], environment.trackers)
        ownership.run(lambda _: require_trackers(trackers))
        checkpoint = _find(settings, comm, resume_from)
        startup_time.mark(startup_time.FOLDER)
        compiled = CompiledCode(folder.path, environment)
        compiled.unpack(comm.world)
        parts = build_parts(settings, comm, strategy, checkpoint=checkpoint)
        asked, settings = settings, parts.settings
        found = _resume(parts.learner, settings, checkpoint)
        del checkpoint  # its tensors map files that training discards later
        launched = resolved(launch, comm, strategy, _log_stages(parts.learner))
        auto = {key: attrgetter(key)(settings) for key in auto_keys(asked)}
        step = found.position.step

        def begin_attempt(owned: Ownership) -> Recorder:
            attempt = begin(owned, asked, comm.world, launched, auto=auto, step=step)
            return Recorder(attempt, compiled, keep=asked.run.keep, step=step)

        recorder = ownership.make(begin_attempt)
        if parts.choice.pieces:
            recorder.run(lambda _: parts.choice.write(folder.path / CHOICE))
        if not launch.dry_run:
            tracked = TrackedRun(folder.path, step, environment.variables)
            recorder.run(lambda root: root.start_trackers(trackers, tracked))
        startup_time.mark(startup_time.RESUME)
        program = TrainerProgram(settings, folder, parts, start=found.position)
        policy = Policy(
            settings.run.log_interval, checkpoint_steps=settings.run.checkpoint_interval, checkpoint_minutes=None
        )
        under_way = Run(program, comm, recorder, request, environment, found=found, policy=policy)
        training = Training(
            settings,
            folder,
            parts=parts,
            program=program,
            run=under_way,
            evaluated=found.metric is not None,
            profiler=profiler,
        )
        try:
            with under_way.mark_errors(), explain_out_of_memory():
                reason = training.train()
        except Stopped as stopped:
            reason = stopped.reason
        finally:
            if launch.memory:
                report_peaks(stage_devices(settings, comm.device))
            program.progress.close()
            if recorder.on_root:
                recorder.on_root.close()  # while this process still holds the folder's lock
        parts.close()
        if comm.world.is_root:
            steps = under_way.position.step - step
            warn_if_missed(launch.profile, steps)
            if settings.model.compile and steps:
                warn_if_not_compiled()
        return reason


def _find(settings: Settings, comm: Communicator, checkpoints: Path) -> Checkpoint | None:
    """Return the checkpoint that --resume selects, or None; None on ranks other than 0. All ranks must call this."""
    launch = settings.launch

    def find() -> Checkpoint | None:
        store = CheckpointStore(checkpoints, keep=settings.run.keep)
        if found := find_checkpoint(launch.resume, store, repair=not launch.dry_run):
            require_trainer_checkpoint(found)
        return found

    return run_on_root(comm, find)


def _resume(learner: Learner, settings: Settings, found: Checkpoint | None) -> Header:
    """Restore ``learner`` from the checkpoint ``found`` on rank 0 and return its header; all ranks must call this."""

    def check() -> None:
        if found:
            check_resumable(found, settings, learner)
            if changed := changes(found.header, settings, ranks=learner.comm.world.size):
                log.info("resumed with other settings: %s", changed)

    run_on_root(learner.comm, check)
    return restore(learner, found)


def _log_stages(learner: Learner) -> list[list[str]]:
    """Log and return each rank's host name and the devices of its stages; [] if the model is not split."""
    if learner.pipeline is None:
        return []
    stages: list[list[str]] = all_gather_json(learner.comm, [socket.gethostname(), *map(str, learner.pipeline.devices)])
    for rank, (host, *devices) in enumerate(stages):
        log.info("rank %d on %s: %d stages on %s", rank, host, len(devices), ", ".join(devices))
    return stages
