"""Training run from settings to results: build, resume, train epoch by epoch, report."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path

from slipway.base import startup_time
from slipway.base.environment import Environment, World
from slipway.base.stop import Reason, StopRequest
from slipway.checkpoint.compile_cache import CompiledCode
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Metric
from slipway.checkpoint.store import CheckpointStore, find_checkpoint
from slipway.dist.collectives import all_gather_json, run_on_root
from slipway.dist.communicator import Communicator
from slipway.run.attempt import Ownership, open_folder
from slipway.run.program import Stopped
from slipway.run.recorder import Recorder
from slipway.run.run import Run
from slipway.run.run_folder import RunFolder
from slipway.run.trackers import TrackedRun, named_trackers, require_trackers
from trainer.adapter import TrainerProgram, policy
from trainer.build import Parts, build_parts
from trainer.config.settings import Settings
from trainer.data.feed import recorded
from trainer.data.loader import Batch, by_step
from trainer.engine.auto_precision import auto_keys, settle
from trainer.engine.checkpoint import ORDER, changes, check_resumable, require_trainer_checkpoint, restore
from trainer.engine.evaluation import Evaluation, evaluate
from trainer.engine.learner import Learner
from trainer.engine.memory import explain_out_of_memory, report_peaks
from trainer.engine.profiler import Profiler, profiler_for, warn_if_missed
from trainer.engine.provenance import begin
from trainer.model.compilation import warn_if_not_compiled
from trainer.parallel.device import stage_devices
from trainer.parallel.strategy import Strategy, resolved
from trainer.parallel.threads import set_threads
from trainer.results.dry_run import keep_schedule, temporary_folder

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
    set_threads(launch.threads, comm, environment)
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
        asked, settings = settings, settle(settings, comm, backend=strategy.name, checkpoint=checkpoint)
        startup_time.mark(startup_time.FOLDER)
        compiled = CompiledCode(folder.path, environment)
        compiled.unpack(comm.world)
        parts = build_parts(settings, comm, strategy)
        found = _resume(parts.learner, settings, comm, checkpoint)
        del checkpoint  # its tensors map files that training discards later
        parts.feed.order_version = found.facts.get(ORDER, parts.feed.order_version)
        launched = resolved(launch, comm, strategy, _log_stages(parts.learner))
        place = TrackedRun(folder.path, found.position.step, environment.variables)
        auto = {key: attrgetter(key)(settings) for key in auto_keys(asked)}
        recorder = ownership.make(
            lambda owned: _begin(owned, compiled, asked, comm.world, launched, auto=auto, step=place.step)
        )
        if parts.choice.pieces:
            recorder.run(lambda _: parts.choice.write(folder.path / CHOICE))
        if not launch.dry_run:
            recorder.run(lambda root: root.start_trackers(trackers, place))
        startup_time.mark(startup_time.RESUME)
        program = TrainerProgram(settings, comm, folder, parts, start=found.position)
        under_way = Run(program, comm, recorder, request, environment, found=found, policy=policy(settings))
        try:
            with under_way.mark_errors(), explain_out_of_memory():
                reason = Training(
                    settings, folder, parts=parts, program=program, run=under_way, found=found, profiler=profiler
                ).train()
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
            steps = under_way.position.step - found.position.step
            warn_if_missed(launch, steps)
            if settings.model.compile and steps:
                warn_if_not_compiled()
        return reason


def _log_stages(learner: Learner) -> list[list[str]]:
    """Log and return each rank's host name and the devices of its stages; [] if the model is not split."""
    if learner.pipeline is None:
        return []
    stages: list[list[str]] = all_gather_json(learner.comm, [socket.gethostname(), *map(str, learner.pipeline.devices)])
    for rank, (host, *devices) in enumerate(stages):
        log.info("rank %d on %s: %d stages on %s", rank, host, len(devices), ", ".join(devices))
    return stages


def _begin(
    owned: Ownership,
    compiled: CompiledCode,
    settings: Settings,
    world: World,
    launched: Mapping[str, object],
    *,
    auto: Mapping[str, object],
    step: int,
) -> Recorder:
    """Begin an attempt at ``step`` and return its recorder; only rank 0 calls this."""
    attempt = begin(owned, settings, world, launched, auto=auto, step=step)
    return Recorder(attempt, compiled, keep=settings.run.keep, step=step)


def _find(settings: Settings, comm: Communicator, checkpoints: Path) -> Checkpoint | None:
    """Return the checkpoint that --resume selects, or None; None on ranks other than 0. All ranks must call this."""
    launch = settings.launch

    def find() -> Checkpoint | None:
        store = CheckpointStore(checkpoints, keep=settings.run.keep)
        if found := find_checkpoint(launch.resume, store, repair=not launch.dry_run):
            require_trainer_checkpoint(found)
        return found

    return run_on_root(comm, find)


def _resume(learner: Learner, settings: Settings, comm: Communicator, found: Checkpoint | None) -> Header:
    """Restore ``learner`` from the checkpoint ``found`` on rank 0 and return its header; all ranks must call this."""

    def check() -> None:
        if found:
            check_resumable(found, settings, learner)
            if changed := changes(found.header, settings, ranks=comm.world.size):
                log.info("resumed with other settings: %s", changed)

    run_on_root(comm, check)
    return restore(learner, found)


class Training:
    """Training loop over epochs: train, evaluate, save."""

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        *,
        parts: Parts,
        program: TrainerProgram,
        run: Run,
        found: Header,
        profiler: Profiler | None,
    ) -> None:
        """Prepare to continue from the checkpoint header ``found``."""
        self.settings, self.folder, self.world = settings, folder, parts.learner.comm.world
        self.parts, self.learner, self.program, self.run = parts, parts.learner, program, run
        self.profiler = profiler
        self.evaluated = found.metric is not None
        """Whether the checkpoint holds the metric of an evaluation."""

    def train(self) -> Reason:
        """Train to the end.

        Raises:
            Stopped: if all ranks agree to stop early; everything is saved by then.
        """
        self._announce()
        while not self._finished():
            self.run.start_clock()
            train_epoch(
                self.learner,
                self._batches(),
                self.run,
                samples=len(self.parts.train_set),
                verify_interval=self.settings.run.verify_replicas,
            )
            self._end_epoch()
        if self.program.evaluation is None:  # no steps remained
            if self.evaluated:
                self.program.evaluation = self._evaluate()
            else:  # the previous attempt stopped after the last step, before the evaluation
                self._end_epoch()
        self.program.require_decodable_validation()
        self.run.save_unsaved()
        self.run.conclude()
        epoch, epochs = self.run.position.epoch, self.settings.train.epochs
        if epoch < epochs and self._steps_left() != 0:
            log.info("stopped after epoch %d of %d because of --stop-epoch", epoch, epochs)
        return Reason.NONE

    def _announce(self) -> None:
        log.info(
            "%d rank(s) on %s: %s on %s, %d training and %d validation samples, %d per step; run folder %s",
            self.world.size,
            self.learner.comm.device.type,
            self.settings.model.arch,
            self.settings.data.dataset,
            len(self.parts.train_set),
            len(self.parts.validation_set),
            self.parts.feed.batch_size,
            self.folder.path,
        )
        if self.run.start.step:
            log.info("resumed at step %d, in epoch %d", self.run.start.step, self.run.start.epoch + 1)
        self.program.progress.start(self.run.start)

    def _steps_left(self) -> int | None:
        """Return the number of remaining optimizer steps; None if there is no limit."""
        if self.settings.launch.dry_run:
            return max(0, self.run.start.step + 1 - self.run.position.step)
        limit = self.settings.train.max_steps
        return max(0, limit - self.run.position.step) if limit else None

    def _finished(self) -> bool:
        epochs, stop = self.settings.train.epochs, self.settings.launch.stop_epoch
        return self.run.position.epoch >= min(epochs, stop or epochs) or self._steps_left() == 0

    def _batches(self) -> Iterator[Batch]:
        position = self.run.position
        batches = self.parts.feed.batches(epoch=position.epoch, start=position.samples, steps=self._steps_left())
        # Only rank 0 has the path of a dry run's folder.
        if self.settings.run.record_samples and not self.settings.launch.dry_run:
            path = self.folder.logs / f"samples.rank{self.world.rank}.jsonl"
            batches = recorded(batches, path, position=position)
        return self.profiler.watch(batches) if self.profiler else batches

    def _evaluate(self) -> Evaluation:
        train, samples = self.settings.train, len(self.parts.validation_set)
        limit = train.val_batch_size if self.settings.launch.dry_run else samples
        return evaluate(
            self.learner,
            self.parts.validation_loader,
            batch_size=train.val_batch_size,
            limit=min(limit, samples),
            watch=lambda batches, most: self.run.watch(batches, most=most),
        )

    def _end_epoch(self) -> None:
        """Evaluate, advance to the next epoch if this one is complete, and save."""
        began = time.monotonic()
        result = self._evaluate()
        self.run.write(self.program.evaluated(self.run.position, result, seconds=time.monotonic() - began))
        self.run.set_metric(Metric("accuracy", result.accuracy))
        if self.run.position.samples == len(self.parts.train_set):
            self.run.position = self.run.position.next_epoch()
        self.run.end_epoch(last=self._finished())
        self.program.require_decodable_validation()  # only after everything is saved


def train_epoch(
    learner: Learner, batches: Iterable[Batch], run: Run, *, samples: int, verify_interval: int | None
) -> None:
    """Train on ``batches``, the remaining batches of an epoch.

    Args:
        learner: the learner to train.
        batches: this rank's micro-batches.
        run: the run that counts the steps.
        samples: the number of samples in an epoch, over all ranks.
        verify_interval: steps between two comparisons of the replicas; None: never compare.

    Raises:
        Stopped: if all ranks agree to stop; everything is saved by then.
    """
    for plan, micro_batches in by_step(batches):
        learner.start_step(run.position, step_samples=plan.step_samples)
        learner.backward(micro_batches, count=plan.total)
        learner.step()
        if verify_interval and (run.step + 1) % verify_interval == 0:
            learner.require_equal_replicas()
        is_last = run.samples + plan.step_samples == samples
        (run.count if is_last else run.advance)(plan.step_samples)
    run.end_batches()
