"""``SlipwayCallback``: run folder, graceful stop and resume for Lightning's Trainer (docs/howto/frameworks.md)."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

try:
    from lightning.pytorch.callbacks import Checkpoint
except ImportError:  # the older package name
    from pytorch_lightning.callbacks import Checkpoint  # type: ignore[assignment]

from slipway.base.contract import CHECKPOINTS
from slipway.base.errors import SessionError, SlipwayError
from slipway.base.stop import Reason
from slipway.checkpoint.store import CheckpointStore, reading
from slipway.checks.skipped_steps import warn_of_skipping
from slipway.dist.collectives import RootOnly, all_gather_json, broadcast_json, run_on_root
from slipway.dist.existing_group import destroy_group_at_exit
from slipway.lightning.checkpoint_file import FILE, require_intact
from slipway.lightning.place import LightningPlace, Saved
from slipway.run.agreement import Agreement, VoteInterval
from slipway.run.attempt import Attempt, Ownership
from slipway.run.program import Stopped
from slipway.run.recorder import provenance
from slipway.script.identity import (
    SESSION,
    identify,
    is_of_other_folder,
    log_if_done,
    next_unused_folder,
    record_session_outcome,
)
from slipway.script.opening import Joined, joined_ranks, script_run_folder

log = logging.getLogger(__name__)


class Writer(NamedTuple):
    """Objects with which rank 0 writes to the run folder."""

    attempt: Attempt
    store: CheckpointStore


class SlipwayCallback(Checkpoint):  # type: ignore[misc, unused-ignore] # untyped where Lightning is not installed
    """Callback that connects Lightning's Trainer to a job's run folder: lock, status, stop, checkpoints, verdict.

    ::

        callback = SlipwayCallback()
        trainer = Trainer(max_epochs=20, callbacks=[callback])
        trainer.fit(model, loader, ckpt_path=callback.ckpt_path)

    All ranks save, by ``trainer.save_checkpoint``, at the end of each training epoch, and when they agree to stop. They
    stop after any rank receives SIGUSR1, SIGTERM, SIGINT or SIGHUP, or if the file STOP exists in the run folder.
    ``fit`` then raises ``slipway.Stopped``, a SystemExit with its exit code (docs/reference/exit-codes.md). During
    ``fit``, Lightning installs no signal handlers and does not requeue the job; the job script does.

    The callback seeds the global random generators at the start of each epoch from the script's own seed, and saves
    them at a stop. The first ``fit`` of a process uses the run folder, the second uses its subfolder ``fit2``, and so
    on.
    """

    def __init__(self, *, folder: str | os.PathLike[str] | None = None, keep: int = 3, timeout: float = 1800) -> None:
        """Configure the run folder that ``Trainer.fit`` opens.

        Args:
            folder: the run folder. Default: RUN_DIR, which job scripts set, or else runs/ and the script's name.
            keep: number of newest checkpoints to keep.
            timeout: seconds for which ranks wait for each other.

        Raises:
            SessionError: if ``keep`` is not above 0.
        """
        if keep <= 0:
            raise SessionError("session-arguments", f"keep={keep!r} must be a number above 0.")
        self._path = folder
        self._keep, self._timeout = keep, timeout
        self._used: Path | None = None
        self._trainer: Any = None
        self._place: LightningPlace | None = None
        self._saved: Saved | None = None
        self._stack = contextlib.ExitStack()
        self._joined: Joined | None = None
        self._writer: RootOnly[Writer] | None = None
        self._pace = VoteInterval()
        self._start = self._step = self._checked = 0
        self._checked_at = 0.0
        self._reason = Reason.NONE

    @property
    def folder(self) -> Path:
        """The run folder of the current or last ``fit``; before the first ``fit``, the folder of the next one."""
        return self._used or self._next_folder

    @property
    def ckpt_path(self) -> str | None:
        """Path of the newest checkpoint for the next ``Trainer.fit(ckpt_path=...)``; None for a new run."""
        return self._newest_in(self.folder if self._joined else self._next_folder)

    @property
    def best_model_path(self) -> str:
        """Path for ``Trainer.test(ckpt_path="best")``, which the Trainer reads from its first checkpoint callback.

        The path is that of another ``ModelCheckpoint`` of the Trainer. Without one, it is the newest checkpoint of the
        last ``fit``, as with Lightning's default. It is empty before a ``fit``.
        """
        others = [each for each in getattr(self._trainer, "checkpoint_callbacks", []) if each is not self]
        paths = [path for each in others if (path := getattr(each, "best_model_path", ""))]
        if paths or others or self._used is None:
            return paths[0] if paths else ""
        return self._newest_in(self._used) or ""

    def state_dict(self) -> Saved:
        """Return the position in the epoch, for the checkpoints that this callback saves."""
        return dict(self._saved or {})

    def load_state_dict(self, state_dict: Saved) -> None:
        """Store the saved position until training begins."""
        self._saved = state_dict

    # Hooks that the Trainer calls.

    def setup(self, pl_trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002 -- Lightning's signature
        """Lock the run folder, after the ranks have joined.

        Raises:
            RunError: on every rank, if the folder cannot be written or is in use, or its newest checkpoint is damaged.
        """
        if stage != "fit" or pl_trainer.fast_dev_run:
            return
        # Lightning's SIGTERM handler broadcasts from within the handler, and its SIGUSR1 handler requeues the job.
        connector = pl_trainer._signal_connector  # noqa: SLF001 -- Lightning has no public API for it
        connector.register_signal_handlers = lambda: None
        self._stack.callback(delattr, connector, "register_signal_handlers")
        self._joined = self._stack.enter_context(joined_ranks(self._next_folder, timeout=self._timeout))
        store = CheckpointStore(self._joined.folder.checkpoints, keep=self._keep)
        self._joined.ownership.run(lambda _: require_intact(store))
        self._trainer, self._used = pl_trainer, self._joined.folder.path
        self._writer, self._pace, self._reason = None, VoteInterval(), Reason.NONE
        self._place = self._saved = None

    def on_fit_start(self, pl_trainer: Any, pl_module: Any) -> None:
        """Identify the run, and seed for the first epoch."""
        if self._joined is None:
            return
        comm, path = self._joined.comm, self._joined.folder.path
        is_saved = self._newest_in(path) is not None
        begun = run_on_root(comm, lambda: identify(path, {}, None, is_saved=is_saved))
        self._begun = broadcast_json(comm, begun)
        self._place = LightningPlace(pl_trainer, pl_module, comm, seed=self._begun["seed"])

    def on_sanity_check_end(self, pl_trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Seed again for the first epoch, because a resumed fit does not draw the sanity check's random numbers."""
        if self._place:
            self._place.seed()

    def on_train_start(self, pl_trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Begin the attempt at the saved position in the epoch.

        Raises:
            Stopped: on every rank, if a stop request arrived after the last step of an earlier ``fit`` of the process.
        """
        self._begin(pl_trainer)
        if self._joined:
            self._reason = self._agreement.inherited()
            if self._reason:
                self._stop()
        if self._place:
            self._place.on_train_start(self._saved)
        self._saved = None

    def on_train_epoch_start(self, pl_trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Stop if the ranks agreed to at the end of the last epoch, whose records are now written."""
        if self._reason:
            self._stop()
        if self._place:
            self._place.on_train_epoch_start()
        self._checked_at = time.monotonic()

    def on_train_batch_end(self, pl_trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Save and stop if the ranks agree to, after a batch in which an optimizer has stepped.

        Raises:
            Stopped: on every rank, if the ranks agree to stop; the run is saved first.
        """
        stepped, self._step = pl_trainer.global_step > self._step, pl_trainer.global_step
        if self._joined is None or not stepped or pl_trainer.is_last_batch:  # the end of the epoch is near
            return
        if _validation_is_due(pl_trainer, batch_idx):  # a resumed run would skip the validation
            return
        is_alone = self._joined.comm.world.size == 1
        if self._step - self._checked >= self._pace.steps or (is_alone and self._joined.request.reason):
            self._agree()
            if self._reason:
                self._save(pl_trainer)
                self._stop()

    def on_train_epoch_end(self, pl_trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Save, and vote whether to stop."""
        if self._joined is None:
            return
        self._step = pl_trainer.global_step
        self._save(pl_trainer)
        self._agree()

    def on_exception(self, pl_trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Record the error or the stop, and unlock the run folder."""
        self._joined = None
        if isinstance(exception, SlipwayError):
            exception.in_training = self._step > self._start
        self._stack.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self, pl_trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Record that the run is done."""
        if self._joined is None or stage != "fit":
            return
        self._begin(pl_trainer)  # not yet done if the run was already complete
        self._conclude(Reason.NONE)
        log.info("done at step %d", self._step)
        if self._place:
            self._place.seed()  # the next fit's weights must not depend on whether this one has trained
        self._joined = None
        self._stack.close()
        destroy_group_at_exit()  # Lightning created the process group, and destroys it only for NCCL

    # Private helpers.

    @property
    def _next_folder(self) -> Path:
        return next_unused_folder(script_run_folder(self._path))

    def _newest_in(self, folder: Path) -> str | None:
        with reading(folder):
            newest = CheckpointStore(folder / CHECKPOINTS, keep=self._keep).newest_folder()
        return str(newest / FILE) if newest else None

    def _begin(self, pl_trainer: Any) -> None:
        """Check that the Trainer continues from the folder's newest checkpoint, and record the attempt."""
        if self._joined is None or self._writer is not None:
            return
        comm, folder = self._joined.comm, self._joined.folder
        store = CheckpointStore(folder.checkpoints, keep=self._keep)
        newest = broadcast_json(comm, str(store.newest_folder() or ""))
        resumed = str(pl_trainer.ckpt_path or "")
        is_other = bool(newest) and not resumed.startswith(newest)
        if any(all_gather_json(comm, is_other or is_of_other_folder(resumed, folder.path))):
            held = f"a run with checkpoint {newest}" if newest else "no run yet"
            error = SessionError(
                "not-resumed",
                f"{folder.path} holds {held}, but the Trainer began from {resumed or 'nothing'}. "
                "Use trainer.fit(model, ckpt_path=callback.ckpt_path), or SlipwayCallback(folder=...) for another run.",
            )
            error.raised_on_all_ranks = True
            raise error
        if comm.world.is_root:
            optimizers = {f"optimizer {number}": each for number, each in enumerate(pl_trainer.optimizers)}
            warn_of_skipping(optimizers, [getattr(pl_trainer.precision_plugin, "scaler", None)])
        self._start = self._step = self._checked = int(pl_trainer.global_step)
        self._checked_at = time.monotonic()

        self._stack.enter_context(record_session_outcome(folder.path))

        def begin(owned: Ownership) -> Writer:
            record = {**provenance(comm.world, {}), SESSION: self._begun}
            attempt = owned.begin(provenance=record, step=self._start)
            log_if_done(folder.path, owned.before, self._begun)
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
        """Save on all ranks through Lightning, under a temporary name that is never read; rank 0 then renames it."""
        assert self._joined
        assert self._writer
        assert self._place
        step = self._step
        self._saved = self._place.save()
        begun = self._writer.run(lambda writer: str(writer.store.begin(step)))
        temporary = Path(broadcast_json(self._joined.comm, begun))
        pl_trainer.save_checkpoint(temporary / FILE, weights_only=False)  # Lightning logs a line if it is not given
        self._writer.run(lambda writer: str(writer.store.commit(temporary, step)))
        self._saved = None

    def _stop(self) -> None:
        assert self._joined
        reason = self._reason
        self._conclude(reason)
        log.info("stopped (%s) at step %d, saved: the run resumes there", reason.word, self._step)
        ranks = self._joined.comm.world.size
        raise Stopped(self._joined.environment.exit_code(reason, ranks=ranks), reason)

    def _conclude(self, reason: Reason) -> None:
        assert self._writer
        self._writer.run(lambda writer: writer.attempt.conclude(reason, step=self._step))


def _validation_is_due(pl_trainer: Any, batch_idx: int) -> bool:
    """Return whether the Trainer validates after this batch, and not also after the next one."""
    every = pl_trainer.val_check_batch or 0
    done = batch_idx if pl_trainer.check_val_every_n_epoch else pl_trainer.fit_loop.total_batch_idx
    return every > 1 and (done + 1) % every == 0
