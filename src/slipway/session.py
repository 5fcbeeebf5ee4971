"""``slipway.Session``: exact resume, stop and requeue for any training script."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import torch
from torch import Tensor

from slipway.base.errors import SessionError
from slipway.capture.data_parallel import undo_pass
from slipway.capture.weights import load_best, named_weights
from slipway.checkpoint.header import Metric
from slipway.checkpoint.sharded_save import ShardWriter
from slipway.checks.replicas import require_equal_replicas
from slipway.checks.unsaved_optimizers import require_saved_parameters
from slipway.dist.existing_group import require_joined
from slipway.rng.seeding import Purpose
from slipway.run.program import Policy, Stopped
from slipway.run.run import Run
from slipway.script.arguments import as_device, as_number, require_iterable, whole_number
from slipway.script.identity import as_seed
from slipway.script.loops import Batches, open_loops
from slipway.script.notices import announce
from slipway.script.opening import open_run
from slipway.script.peek import require_peeked_position
from slipway.script.session_program import SessionProgram
from slipway.script.step_metrics import require_free_names
from slipway.state.named_objects import named_objects, session_components
from slipway.state.wrappers import unwrap

T = TypeVar("T")

log = logging.getLogger(__name__)


class Session:
    """Context manager that makes a script's training loop stoppable and resumable; see docs/howto/session.md.

    ::

        with Session(model=model, optimizer=optimizer, scheduler=scheduler) as session:
            for epoch in session.epochs(20):
                for inputs, targets in session.batches(loader):
                    ...  # forward, backward, optimizer.step(), unchanged
                    session.log(loss=loss)
                session.metrics(accuracy=validate(model))

    On entry, the session resumes the run in the run folder, if the folder holds one: it restores the objects, and
    ``epochs`` and ``batches`` continue from the checkpoint. All ranks must open a session, after they have joined the
    process group or Horovod's world, and must call the same methods unless a method states otherwise.
    """

    _is_open = False

    def __init__(
        self,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        extra: Any = None,
        weights: Any = None,
        folder: str | os.PathLike[str] | None = None,
        seed: int | None = None,
        log_interval: int = 50,
        trackers: str | Sequence[str] = (),
        checkpoint_steps: int | None = None,
        checkpoint_minutes: float | None = 15,
        keep: int = 3,
        best: str | None = None,
        minimize: bool = False,
        repeat_epoch: bool = False,
        allow_nonfinite: bool = False,
        timeout: float = 1800,
    ) -> None:
        """Specify the objects to save. The first five arguments take an object, a dictionary by name, or a list.

        Args:
            model: a module: bare, compiled, sharded by ``fully_shard``, or wrapped in DistributedDataParallel or
                DataParallel. It is saved without the wrapper. A sharded module may be on the meta device: it is filled
                from ``weights`` or the checkpoint.
            optimizer: an optimizer of ``torch.optim``, of Horovod, or one with the same methods.
            scheduler: a learning-rate scheduler.
            scaler: a ``torch.amp.GradScaler``.
            extra: any other object with ``state_dict`` and ``load_state_dict``, or a random generator of torch, numpy
                or Python.
            weights: the model's initial weights, used only if the run folder holds no run yet: a .pt, .pth or
                .safetensors file, or a Hugging Face folder. For several models, a dictionary of these by model name.
            folder: the run folder. Default: RUN_DIR, which job scripts set, or else runs/ and the script's name.
            seed: the seed of all random numbers. A run cannot be resumed with another seed. Default:
                ``torch.initial_seed()`` of rank 0. The run folder records it, and later attempts use the recorded seed.
                Later sessions of the same process derive their default from it and the name of their run folder.
            log_interval: steps between two records in metrics.jsonl.
            trackers: trackers that also receive the records: "tensorboard", "wandb", "mlflow". SLIPWAY_TRACKERS adds
                more.
            checkpoint_steps: steps between two checkpoints; None to save only by time and at the end of each epoch.
            checkpoint_minutes: minutes between two checkpoints; None to save only by steps and at the end of each
                epoch.
            keep: number of newest checkpoints to keep, besides the best one.
            best: name of the metric that selects the best checkpoint.
            minimize: whether a smaller value of that metric is better.
            repeat_epoch: whether to repeat an epoch from its beginning if the number of ranks has changed within it
                and the loader's sampler is not ``slipway.Sampler``. If False, the session raises an error instead.
            allow_nonfinite: whether to continue training after the script has logged inf or nan.
            timeout: seconds for which ranks wait for each other.

        Raises:
            SessionError: if an object has no state that can be saved, or an argument is invalid.
        """
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "extra": extra}
        self._objects = {kind: named_objects(kind, value) for kind, value in given.items()}
        self._components = session_components(self._objects)
        if not self._components or (self._objects["optimizer"] and not self._objects["model"]):
            raise SessionError(
                "session-arguments",
                "no object to save, or an optimizer without a model: Session(model=model, optimizer=optimizer).",
            )
        for name in ("log_interval", "checkpoint_steps", "checkpoint_minutes", "keep"):
            value = locals()[name]
            if value is not None and not value > 0:
                raise SessionError("session-arguments", f"{name}={value!r} must be a number above 0.")
        require_saved_parameters(self._objects["optimizer"], self._objects["model"], self._objects["extra"])
        models = {name: self._components[name] for name in self._objects["model"]}
        self._weights = named_weights(weights, models)
        self._policy = Policy(log_interval, checkpoint_steps, checkpoint_minutes)
        self._allow_nonfinite = allow_nonfinite
        self._where, self._trackers = folder, trackers
        self._seed, self._keep, self._timeout = as_seed(seed), keep, timeout
        self._best, self._minimize, self._repeat_epoch = best, minimize, repeat_epoch

    def __getattr__(self, name: str) -> Any:
        """Raise a SessionError if the script uses a session that is not open."""
        if name in {"_opened", "_feed", "_run", "_stack", "_generators", "_script", "_loops"}:
            raise SessionError("session-not-open", "the session is not open: use `with Session(...) as session:`.")
        raise AttributeError(name)

    @property
    def step(self) -> int:
        """Optimizer steps done, in all attempts."""
        return self._run.step

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self._run.position.epoch

    @property
    def batch(self) -> int:
        """Batches done in the current pass: the start value for ``enumerate(session.batches(loader), session.batch)``.

        In a resumed epoch, the value is valid as soon as the session is open; it then belongs to the pass that begins
        next.
        """
        return self._feed.done

    @property
    def resumed(self) -> bool:
        """Whether this attempt continues a saved run."""
        return (self._run.start.step, self._run.start.epoch) > (0, 0)

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, which writes all of the run folder but the shards of other ranks."""
        return self._opened.comm.world.is_root

    @property
    def folder(self) -> Path:
        """The run folder, the same on all ranks."""
        return self._opened.folder.path

    @property
    def should_stop(self) -> bool:
        """Whether the ranks agreed to stop in their last vote. Reading it does not communicate."""
        return bool(self._run.reason)

    def __enter__(self) -> Self:
        """Open the run folder, and resume its run if it holds one.

        Raises:
            RunError: if the folder cannot be written, or is in use.
            SessionError: if the saved run does not fit the objects, if it resumes elsewhere than ``slipway.peek``
                returned, or if a session is already open.
            Stopped: if a stop request arrived after the last step of an earlier session of this process.
        """
        if Session._is_open:
            raise SessionError("session-not-open", "a session is already open: a process can have one at a time.")
        with contextlib.ExitStack() as stack:
            opened = self._opened = stack.enter_context(
                open_run(
                    self._components,
                    given={name: value for named in self._objects.values() for name, value in named.items()},
                    path=self._where,
                    seed=self._seed,
                    weights=self._weights,
                    trackers=self._trackers,
                    keep=self._keep,
                    timeout=self._timeout,
                )
            )
            require_peeked_position(opened.folder.path, opened.found.position, opened.comm)
            if opened.objects.is_sharded:
                require_equal_replicas(self._objects["model"], opened.comm)
            models, optimizers = self._objects["model"].values(), self._objects["optimizer"].values()
            self._script = SessionProgram(
                opened,
                optimizers=[*optimizers],
                scalers=self._objects["scaler"].values(),
                extra=self._objects["extra"],
                parameters=[tensor for model in models for tensor in model.parameters()],
                repeat_epoch=self._repeat_epoch,
                allow_nonfinite=self._allow_nonfinite,
            )
            self._feed, self._generators = self._script.feed, self._script.generators
            stack.callback(self._feed.close)
            self._run = Run(
                self._script,
                opened.comm,
                opened.recorder,
                opened.request,
                opened.environment,
                found=opened.found._replace(position=self._script.start),
                policy=self._policy,
                shards=ShardWriter(opened.comm) if self._script.is_sharded else None,
            )
            stack.enter_context(self._run.mark_errors())
            self._loops = stack.enter_context(open_loops(self._script, self._run, self._objects, opened.comm))
            Session._is_open = True
            stack.callback(setattr, Session, "_is_open", False)
            announce(self._objects, start=self._run.start, world=opened.comm.world, folder=self.folder)
            self._run.begin()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Save unsaved progress and record that the run is done; after an error, record the error."""
        is_exit = isinstance(error, SystemExit) and not isinstance(error, Stopped) and error.code in (None, 0)
        if error is not None and not is_exit:
            self._stack.__exit__(kind, error, traceback)
            return
        if is_exit:
            log.info("sys.exit(0) ends the run, as break ends a loop")
        with self._stack:
            if not self._loops.have_ended:
                self._loops.end()
            self._loops.shared_forward.agree("the end of the session")
            self._run.conclude()

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the numbers of the remaining epochs below ``total``, counted from 0; save after each epoch's body.

        In a resumed epoch, the code before ``batches`` runs again.

        Args:
            total: number of epochs of the whole run, in all attempts.

        Raises:
            Stopped: if the ranks agree to stop; the run is saved first.
            SessionError: if ``total`` is not a whole number, or if the script has logged inf or nan.
        """
        self._loops.require_open()
        return self._loops.epochs(whole_number("epochs", total))

    def batches(self, loader: Iterable[T], *, device: torch.device | str | None = None) -> Batches[T]:
        """Return the remaining batches of ``loader`` in this epoch.

        Map-style loaders, lists, tuples and ranges continue exactly, by index. Other loaders, such as those of an
        IterableDataset or of other libraries, are read again from the beginning, and the batches already trained are
        dropped. A data set with internal state must be saved through ``extra``.

        Args:
            loader: a DataLoader or any iterable. It must be the same in each attempt.
            device: move the tensors of each batch to this device, in tuples, named tuples, lists, dictionaries and
                other containers that torch's pytree knows, and objects by their method ``to``; None: do not move.
                Copies of tensors to a GPU are asynchronous, so do not reuse the pinned memory of a batch.

        Returns:
            Batches[T]: an iterable that can be iterated once. Its length is the number of remaining batches, if the
                loader has a length. It raises Stopped after an optimizer step if the ranks agree to stop; the run is
                saved first.

        Raises:
            StateMismatchError: if the remaining batches are not known for this loader or this number of ranks.
            SessionError: if ``loader`` is not iterable, or if ``device`` is not a device, or a GPU that torch does not
                find.
        """
        require_iterable(loader)
        self._loops.require_open()
        require_joined(self._opened.comm)
        return self._loops.batches(loader, None if device is None else as_device("batches", device))

    def steps(self, total: int) -> Iterator[int]:
        """Yield the numbers of the remaining iterations below ``total``, counted from 0, for loops without epochs.

        ``session.batch`` counts iterations. ``session.step`` counts the iterations in which an optimizer has stepped.
        Consecutive calls continue: ``steps(200)`` after ``steps(100)`` yields 100 to 199. After ``break``, the loop is
        done. The script's own iterators over a loader start from the beginning in each attempt.

        Args:
            total: number of iterations of the whole run, in all attempts.

        Raises:
            Stopped: if the ranks agree to stop; the run is saved first.
            SessionError: if ``total`` is not a whole number, or if another loop of the session is running.
        """
        self._loops.require_open()
        return self._loops.steps(whole_number("steps", total))

    def log(self, **values: float | Tensor) -> None:
        """Log numbers of this step. Every ``log_interval`` steps, their means over steps and ranks go to metrics.jsonl.

        Args:
            values: numbers, or tensors of one element, of any shape and real dtype. Tensors stay on their device until
                the means are computed. Each rank logs its own values.

        Raises:
            SessionError: if a value is not a number, or a name is reserved for the record itself.
        """
        self._script.window.log(values)

    @overload
    def mean(self, name: str) -> float: ...

    @overload
    def mean(self, name: str, value: float | Tensor, weight: float | Tensor = 1) -> None: ...

    def mean(self, name: str, value: Any = ..., weight: float | Tensor = 1) -> float | None:
        """Add ``value`` to a mean over this pass of ``batches``; without a value, return the mean.

        ::

            for inputs, targets in session.batches(loader):
                ...
                session.mean("loss", loss, len(inputs))
            print(session.mean("loss"))

        The mean covers the batches of all ranks, in all attempts. After the loop, any rank can read it. After a
        ``break``, all ranks must read it. Within the loop, the result is this rank's mean so far. If an epoch has
        several passes, the result is the mean of the last pass with a value of this name. Each epoch starts new means.

        Args:
            name: name of the mean.
            value: a number, or a tensor of one element, which stays on its device. inf and nan are included.
            weight: weight of this value, at least 0: for a mean over samples, the batch size. A number or a tensor.

        Raises:
            SessionError: if a value is not a number, if it is added outside a loop over ``batches``, or if the mean is
                read and has no value.
            Stopped: after ``break``, under the same conditions as ``batches``.
        """
        self._loops.end_abandoned_pass()
        if value is ...:
            return self._script.means.read(name)
        self._script.means.add(name, value, weight)
        return None

    def metrics(self, **values: float) -> None:
        """Record validation metrics from rank 0; the one named by ``best`` selects the best checkpoint.

        The report shows a ``loss`` recorded here as the validation loss; record the training loss with ``log``.

        Args:
            values: numbers, or tensors of one element. Values of other ranks are ignored, and other ranks need not call
                this method.

        Raises:
            SessionError: if a value is not a number, if the metric named by ``best`` is missing, or if a name is
                reserved for the record itself.
            Stopped: if the ranks had agreed to stop and the script caught the exception.
        """
        require_free_names(values)
        numbers = {name: float(as_number("metrics", name, value)) for name, value in values.items()}
        if self._best is not None and not self._loops.have_ended:
            if self._best not in numbers:
                raise SessionError(
                    "unknown-metric", f"best={self._best!r} is not one of the metrics passed: {', '.join(numbers)}."
                )
            self._run.set_metric(Metric(self._best, numbers[self._best], maximize=not self._minimize))
        if self._feed.is_resuming and not self._loops.have_ended:
            return  # an earlier attempt has recorded it
        position = self._run.position
        place = {"step": position.step, **self._script.described(position), "elapsed": position.elapsed}
        self._run.write({"kind": "validation", **place, **numbers})

    def load_best(self) -> float:
        """Load the best weights into the models, after all loops of the session; all ranks must call this.

        ::

            with Session(model=model, optimizer=optimizer, best="accuracy") as session:
                for epoch in session.epochs(20):
                    ...
                    session.metrics(accuracy=validate(model))
                best = session.load_best()
                session.metrics(test_accuracy=test(model))

        The session first saves the run, so the newest checkpoint holds the final weights. The script cannot train in
        this session afterwards. If a finished run is started again, this method loads the best weights again.

        Returns:
            float: the best checkpoint's value of the metric named by ``best``.

        Raises:
            SessionError: if no best checkpoint exists. A loop of the session that continues later also raises it.
        """
        if not self._loops.have_ended:
            self._loops.end()
        self._run.wait_for_save()
        models = {name: self._components[name] for name in self._objects["model"]}
        return load_best(models, self._opened.folder.checkpoints, self._opened.comm)

    def warm_up(self, step: Callable[[], object]) -> None:
        """Call ``step``, a forward and a backward pass, and undo its effects; all ranks, before the first epoch.

        DistributedDataParallel on three or more ranks then resumes bitwise identically
        (docs/decisions/0003-warm-up-before-the-first-step.md).

        Args:
            step: called once, without arguments. Gradients are then cleared, and buffers are restored. The global
                random generators are seeded before the call, and again when the next epoch begins.
        """
        modules = [unwrap(model) for model in self._objects["model"].values()]
        self._generators.seed(Purpose.EPOCH, self.epoch)
        with undo_pass(modules):
            step()
        self._loops.without_warm_up.clear()
