"""``SlipwayCallback``: Lightning's Trainer in a run folder, stopped in good order and resumed (docs/frameworks.md)."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

try:
    from lightning.pytorch.callbacks import Checkpoint
except ImportError:  # the same Trainer under its older name
    from pytorch_lightning.callbacks import Checkpoint  # type: ignore[assignment]

from slipway.agreement import Agreement, Pace
from slipway.attempt import Attempt, Ownership
from slipway.checkpoint.store import CheckpointStore
from slipway.communicator.adopt import leave_at_exit
from slipway.communicator.collectives import RootOnly, all_gather_json, broadcast_json
from slipway.errors import SessionError, SlipwayError
from slipway.layout import CHECKPOINTS
from slipway.opening import Joined, folder_of_script, joined_ranks
from slipway.recorder import provenance
from slipway.run import Stopped
from slipway.skipping import warn_of_skipping
from slipway.stop import Reason

log = logging.getLogger(__name__)

FILE = "lightning.ckpt"
"""What Lightning writes into the folder of a checkpoint: a file, or a folder where its strategy shards the state."""


class Writer(NamedTuple):
    """What rank 0 writes with."""

    attempt: Attempt
    store: CheckpointStore


class SlipwayCallback(Checkpoint):  # type: ignore[misc, unused-ignore] # untyped where Lightning is not installed
    """Gives a training by Lightning's Trainer the run folder of a job: lock, status, stop, checkpoints and verdict.

    ::

        callback = SlipwayCallback()
        trainer = Trainer(max_epochs=20, callbacks=[callback])
        trainer.fit(model, loader, ckpt_path=callback.ckpt_path)

    All ranks save, by ``trainer.save_checkpoint``, at the end of each training epoch, and where they have agreed to
    stop: after SIGUSR1, SIGTERM, SIGINT or SIGHUP at any of them, or for the file STOP in the run folder. ``fit`` then
    raises ``slipway.Stopped``, a SystemExit with the contract's exit code. Lightning sets no signal handlers of its own
    meanwhile, and does not requeue: the job script does.
    """

    best_model_path = ""
    """For ``ckpt_path="best"``, which asks the Trainer's first checkpoint callback: this one picks no best."""

    def __init__(self, *, folder: str | os.PathLike[str] | None = None, keep: int = 3, timeout: float = 1800) -> None:
        """Describe the run folder, which ``Trainer.fit`` opens.

        Args:
            folder: the run folder; by default RUN_DIR, which job scripts set, or else runs/ and the script's name.
            keep: number of the newest checkpoints that stay.
            timeout: seconds that ranks wait for each other.

        Raises:
            SessionError: if ``keep`` is not above 0.
        """
        if keep <= 0:
            raise SessionError("session-arguments", f"keep={keep!r} must be a number above 0.")
        self._path = folder
        self._keep, self._timeout = keep, timeout
        self._stack = contextlib.ExitStack()
        self._joined: Joined | None = None
        self._writer: RootOnly[Writer] | None = None
        self._pace = Pace()
        self._start = self._step = self._checked = 0
        self._checked_at = 0.0
        self._reason = Reason.NONE

    @property
    def folder(self) -> Path:
        """The run folder, as this rank names it."""
        return folder_of_script(self._path)

    @property
    def ckpt_path(self) -> str | None:
        """Path of the newest checkpoint in the run folder, for ``Trainer.fit(ckpt_path=...)``; None to begin."""
        newest = CheckpointStore(self.folder / CHECKPOINTS, keep=self._keep).newest_folder()
        return str(newest / FILE) if newest else None

    # What the Trainer calls.

    def setup(self, pl_trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 -- Lightning's signature
        """Lock the run folder, once the ranks have joined.

        Raises:
            RunError: on every rank, if the folder cannot be had.
        """
        if stage != "fit" or pl_trainer.fast_dev_run:
            return
        # Its handler of SIGTERM broadcasts from within the handler, and that of SIGUSR1 requeues the job.
        connector = pl_trainer._signal_connector  # noqa: SLF001 -- there is no public way
        connector.register_signal_handlers = lambda: None
        self._stack.callback(delattr, connector, "register_signal_handlers")
        self._joined = self._stack.enter_context(joined_ranks(self._path, timeout=self._timeout))
        self._writer, self._pace, self._reason = None, Pace(), Reason.NONE

    def on_train_start(self, pl_trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin the attempt."""
        self._begin(pl_trainer)

    def on_train_epoch_start(self, pl_trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Stop if that was agreed at the end of the last epoch, whose records are written now."""
        if self._reason:
            self._stop()
        self._checked_at = time.monotonic()

    def on_train_batch_end(self, pl_trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Stop if the ranks agree on that, behind a batch in which an optimiser has stepped.

        Raises:
            Stopped: on every rank; everything is saved then.
        """
        stepped, self._step = pl_trainer.global_step > self._step, pl_trainer.global_step
        if self._joined is None or not stepped or pl_trainer.is_last_batch:  # the end of the epoch is near
            return
        is_alone = self._joined.comm.world.size == 1
        if self._step - self._checked >= self._pace.steps or (is_alone and self._joined.request.reason):
            self._agree()
            if self._reason:
                self._save(pl_trainer)
                self._stop()

    def on_train_epoch_end(self, pl_trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Save, and let the ranks agree whether to stop."""
        if self._joined is None:
            return
        self._step = pl_trainer.global_step
        self._save(pl_trainer)
        self._agree()

    def on_exception(self, pl_trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Record the error, or that the run has stopped; free the folder."""
        self._joined = None
        if isinstance(exception, SlipwayError):
            exception.in_training = self._step > self._start
        self._stack.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, pl_trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Record that the run is done."""
        if self._joined is None or stage != "fit":
            return
        self._begin(pl_trainer)  # not done before where nothing was left to train
        self._conclude(Reason.NONE)
        log.info("done at step %d", self._step)
        self._joined = None
        self._stack.close()
        leave_at_exit()  # Lightning made the group, and destroys one of NCCL alone

    # Inside.

    def _begin(self, pl_trainer: Any) -> None:
        """Make sure that the Trainer goes on where the folder's run was saved, and record the attempt."""
        if self._joined is None or self._writer is not None:
            return
        comm, folder = self._joined.comm, self._joined.folder
        store = CheckpointStore(folder.checkpoints, keep=self._keep)
        newest = broadcast_json(comm, str(store.newest_folder() or ""))
        resumed = str(pl_trainer.ckpt_path or "")
        if any(all_gather_json(comm, bool(newest) and not resumed.startswith(newest))):
            error = SessionError(
                "not-resumed",
                f"{folder.path} holds a run, saved in {newest}, and the Trainer went on from {resumed or 'nothing'}: "
                "trainer.fit(model, ckpt_path=callback.ckpt_path), or SlipwayCallback(folder=...) for another one.",
            )
            error.raised_on_all_ranks = True
            raise error
        if comm.world.is_root:
            optimizers = {f"optimizer {number}": each for number, each in enumerate(pl_trainer.optimizers)}
            warn_of_skipping(optimizers, [getattr(pl_trainer.precision_plugin, "scaler", None)])
        self._start = self._step = self._checked = int(pl_trainer.global_step)
        self._checked_at = time.monotonic()

        def begin(owned: Ownership) -> Writer:
            attempt = owned.begin(provenance=provenance(comm.world, {}), step=self._start)
            store = CheckpointStore(folder.checkpoints, keep=self._keep, check_owner=attempt.check)
            store.set_aside_after(self._start)
            return Writer(attempt, store)

        self._writer = self._joined.ownership.make(begin)
        root = self._writer.on_root
        self._agreement = Agreement(comm, self._joined.request, root.attempt.stop_request if root else None)
        log.info("%s at step %d, run folder %s", "resumed" if newest else "begun", self._start, folder.path)

    def _agree(self) -> None:
        now = time.monotonic()
        votes = [now - self._checked_at, self._step - self._checked]
        self._reason, (seconds, steps) = self._agreement.agree(votes)
        if steps:
            self._pace.observe(int(steps), seconds)
        self._checked, self._checked_at = self._step, time.monotonic()

    def _save(self, pl_trainer: Any) -> None:
        """Let Lightning save on all ranks, under a name that is never read; rank 0 gives it its own."""
        assert self._joined
        assert self._writer
        step = self._step
        begun = self._writer.run(lambda writer: str(writer.store.begin(step)))
        temporary = Path(broadcast_json(self._joined.comm, begun))
        pl_trainer.save_checkpoint(temporary / FILE)
        self._writer.run(lambda writer: str(writer.store.commit(temporary, step)))

    def _stop(self) -> None:
        assert self._joined
        reason = self._reason
        self._conclude(reason)
        log.info("stopped (%s) at step %d, saved; the same command continues", reason.word, self._step)
        ranks = self._joined.comm.world.size
        raise Stopped(self._joined.environment.exit_code(reason, ranks=ranks), reason)

    def _conclude(self, reason: Reason) -> None:
        assert self._writer
        self._writer.run(lambda writer: writer.attempt.conclude(reason, step=self._step))
