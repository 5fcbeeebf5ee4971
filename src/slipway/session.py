"""``slipway.Session``: exact resume, stop and requeue for any training script."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from torch import Tensor

from slipway.base.errors import SessionError
from slipway.capture.data_parallel import without_trace
from slipway.capture.weights import load_best, named_weights
from slipway.checkpoint.header import Metric
from slipway.checks.unsaved import require_saved_parameters
from slipway.dist.adopt import require_joined
from slipway.rng.seeding import Purpose
from slipway.run.identity import as_seed
from slipway.run.run import Policy, Run, Stopped
from slipway.script.adapter import Script
from slipway.script.arguments import as_number, require_iterable, whole_number
from slipway.script.loops import Batches, open_loops
from slipway.script.notices import announce
from slipway.script.opening import open_run
from slipway.script.peeking import require_as_peeked
from slipway.script.window import require_free_names
from slipway.state.named_objects import components_of, named_objects
from slipway.state.wrappers import unwrap

T = TypeVar("T")

log = logging.getLogger(__name__)


class Session:
    """Makes the training loop of a script stoppable and resumable; see docs/session.md.

    ::

        with Session(model=model, optimizer=optimizer, scheduler=scheduler) as session:
            for epoch in session.epochs(20):
                for inputs, targets in session.batches(loader):
                    ...  # forward, backward, optimizer.step(), as ever
                    session.log(loss=loss)
                session.metrics(accuracy=validate(model))

    On entry a run that the folder holds is resumed: the objects are restored, and ``epochs`` and ``batches`` go on
    where it was saved. All ranks open a session, after they have joined the process group or Horovod's world, and call
    its methods alike.
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
        """Describe what is to be saved, each argument one object, a dictionary of some by name, or a list.

        Args:
            model: bare, compiled, or wrapped by DistributedDataParallel or DataParallel; saved without the wrapper.
            optimizer: of ``torch.optim`` or with its methods, Horovod's too.
            scheduler: of the learning rate.
            scaler: a ``torch.amp.GradScaler``.
            extra: anything else with ``state_dict`` and ``load_state_dict``, and generators of torch, numpy and Python.
            weights: a .pt, .pth or .safetensors file from which the model starts where the folder holds no run yet; of
                several models a dictionary of such by name.
            folder: the run folder; by default RUN_DIR, which job scripts set, or else runs/ and the script's name.
            seed: of everything that is drawn; another one makes another run. By default the script's own, which is
                ``torch.initial_seed()`` of rank 0; it is recorded, and a later attempt takes the recorded one. Later
                sessions of a process derive theirs from it and the name of their folder.
            log_interval: steps between two records in metrics.jsonl.
            trackers: what gets the records besides: "tensorboard", "wandb", "mlflow"; SLIPWAY_TRACKERS names more.
            checkpoint_steps: steps between two checkpoints; None for none but those by time and at the ends of epochs.
            checkpoint_minutes: minutes between two checkpoints; None for none but those by steps and at ends of epochs.
            keep: number of the newest checkpoints that stay, besides the best.
            best: name of the metric by which the best checkpoint is chosen.
            minimize: whether a smaller value of it is better.
            repeat_epoch: whether an epoch is begun anew where the number of ranks has changed within it, and the
                loader's sampler is not ``slipway.Sampler``; otherwise that is refused.
            allow_nonfinite: whether training goes on after inf or nan was logged.
            timeout: seconds that ranks wait for each other.

        Raises:
            SessionError: if an object has no state that can be saved, or an argument makes no sense.
        """
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "extra": extra}
        self._objects = {kind: named_objects(kind, value) for kind, value in given.items()}
        self._components = components_of(self._objects)
        if not self._components or (self._objects["optimizer"] and not self._objects["model"]):
            raise SessionError(
                "session-arguments",
                "a session needs what trains, to save it: Session(model=model, optimizer=optimizer).",
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
        """Say what is wrong where a session is used that is not open."""
        if name in {"_opened", "_feed", "_run", "_stack", "_generators", "_script", "_loops"}:
            raise SessionError("session-not-open", "the session is not open: with Session(...) as session.")
        raise AttributeError(name)

    @property
    def step(self) -> int:
        """Optimiser steps done, in all attempts."""
        return self._run.step

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        return self._run.position.epoch

    @property
    def batch(self) -> int:
        """Batches of the pass done: the first number in ``enumerate(session.batches(loader), session.batch)``.

        In a resumed epoch that holds from the opening on, of the pass that begins next.
        """
        return self._feed.done

    @property
    def resumed(self) -> bool:
        """Whether this attempt goes on with a run that was saved."""
        return (self._run.start.step, self._run.start.epoch) > (0, 0)

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, which alone writes into the run folder."""
        return self._opened.comm.world.is_root

    @property
    def folder(self) -> Path:
        """The run folder, the same on all ranks."""
        return self._opened.folder.path

    @property
    def should_stop(self) -> bool:
        """Whether the ranks have agreed to stop, as of their last agreement; asks nobody."""
        return bool(self._run.reason)

    def __enter__(self) -> Self:
        """Open the run folder, and resume what it holds.

        Raises:
            RunError: if the folder cannot be written, or is in use.
            SessionError: if it holds what does not fit the objects, or is not where ``slipway.peek`` has said, or if a
                session is open already.
            Stopped: if an earlier session of this process was asked to stop after its last step.
        """
        if Session._is_open:
            raise SessionError("session-not-open", "a session is open already: a process has one at a time.")
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
            require_as_peeked(opened.folder.path, opened.found.position, opened.comm)
            models, optimizers = self._objects["model"].values(), self._objects["optimizer"].values()
            self._script = Script(
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
            )
            stack.enter_context(self._run.errors_marked())
            self._loops = stack.enter_context(open_loops(self._script, self._run, self._objects))
            Session._is_open = True
            stack.callback(setattr, Session, "_is_open", False)
            announce(self._objects, start=self._run.start, world=opened.comm.world, folder=self.folder)
            self._run.begin()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Save what is not saved and record that the run is done; after an error, record that."""
        is_exit = isinstance(error, SystemExit) and not isinstance(error, Stopped) and error.code in (None, 0)
        if error is not None and not is_exit:
            self._stack.__exit__(kind, error, traceback)
            return
        if is_exit:
            log.info("sys.exit(0) ends the run as break ends a loop")
        with self._stack:
            if not self._loops.have_ended:
                self._loops.end()
            self._run.conclude()

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the numbers, from 0, of the epochs below ``total`` that are left; the run is saved after each body.

        In an epoch that is resumed, what stands before ``batches`` runs again.

        Args:
            total: number of epochs of the whole run, in all attempts.

        Raises:
            Stopped: if the ranks agree on that; everything is saved then.
            SessionError: if ``total`` is not a whole number, or if something logged was not finite.
        """
        self._loops.require_open()
        return self._loops.epochs(whole_number("epochs", total))

    def batches(self, loader: Iterable[T]) -> Batches[T]:
        """Return the batches of ``loader`` that are left in this epoch.

        Map-style loaders, lists, tuples and ranges continue by index, exactly. Others are read again up to there:
        IterableDataset, loaders of other libraries; a data set that keeps a state of its own has to save it, by
        ``extra``.

        Args:
            loader: a DataLoader, or any iterable; the same one in each attempt.

        Returns:
            Batches[T]: an iterable, once, with the length of what is left where the loader knows its own. It raises
                Stopped behind an optimiser step where the ranks agree on that; everything is saved then.

        Raises:
            StateMismatchError: if what is left is not known for this loader, or on this number of ranks.
            SessionError: if ``loader`` is not iterable.
        """
        require_iterable(loader)
        self._loops.require_open()
        require_joined(self._opened.comm)
        return self._loops.batches(loader)

    def steps(self, total: int) -> Iterator[int]:
        """Yield the numbers, from 0, of the iterations below ``total`` that are left: for loops without epochs.

        ``session.batch`` counts iterations, ``session.step`` those in which an optimiser has stepped. Calls that follow
        each other continue: ``steps(200)`` after ``steps(100)`` yields 100 to 199. After ``break`` the loop is done. An
        iterator of the script over a loader begins anew in each attempt.

        Args:
            total: number of iterations of the whole run, in all attempts.

        Raises:
            Stopped: if the ranks agree on that; everything is saved then.
            SessionError: if ``total`` is not a whole number, or within another loop of the session.
        """
        self._loops.require_open()
        return self._loops.steps(whole_number("steps", total))

    def log(self, **values: float | Tensor) -> None:
        """Log numbers of this step; metrics.jsonl gets their means over steps and ranks, every ``log_interval`` steps.

        Args:
            values: numbers, or tensors of one element, of any shape and real dtype, which stay on their device until
                then. Each rank gives its own.

        Raises:
            SessionError: if a value is something else, or a name is one that records have by themselves.
        """
        self._script.window.log(values)

    @overload
    def mean(self, name: str) -> float: ...

    @overload
    def mean(self, name: str, value: float | Tensor, weight: float | Tensor = 1) -> None: ...

    def mean(self, name: str, value: Any = ..., weight: float | Tensor = 1) -> float | None:
        """Add ``value`` to a mean over this pass of ``batches``, or, without a value, return the mean.

        ::

            for inputs, targets in session.batches(loader):
                ...
                session.mean("loss", loss, len(inputs))
            print(session.mean("loss"))

        It is taken over all batches and ranks, in however many attempts. After the loop any rank can read it; after a
        ``break``, all ranks read it. In the loop it is the mean of this rank so far. If an epoch has several passes, it
        is that of the last one with a value of this name. The next epoch begins anew.

        Args:
            name: of the mean.
            value: a number, or a tensor of one element, which stays on its device. inf and nan count as they are.
            weight: of this value, from 0 on: for a mean over samples their number in the batch. A number or a tensor.

        Raises:
            SessionError: if a value is not a number, is added outside of a loop over ``batches``, or is read where none
                was added.
            Stopped: after ``break``, as ``batches`` does.
        """
        self._loops.end_left_pass()
        if value is ...:
            return self._script.means.read(name)
        self._script.means.add(name, value, weight)
        return None

    def metrics(self, **values: float) -> None:
        """Record what a validation has come to, as rank 0 has it; ``best`` names the one that picks a checkpoint.

        Args:
            values: numbers, or tensors of one element; of no effect on other ranks, which need not call this.

        Raises:
            SessionError: if a value is not a number, the one that ``best`` names is missing, or a name is one that
                records have by themselves.
            Stopped: if the ranks had agreed on that, and the script has caught it.
        """
        require_free_names(values)
        numbers = {name: float(as_number("metrics", name, value)) for name, value in values.items()}
        if self._best is not None and not self._loops.have_ended:
            if self._best not in numbers:
                raise SessionError(
                    "unknown-metric", f"best={self._best!r} is not among the metrics {', '.join(numbers)}."
                )
            self._run.keep_metric(Metric(self._best, numbers[self._best], maximize=not self._minimize))
        if self._feed.is_resuming and not self._loops.have_ended:
            return  # it was recorded before
        position = self._run.position
        place = {"step": position.step, **self._script.described(position), "elapsed": position.elapsed}
        self._run.write({"kind": "validation", **place, **numbers})

    def load_best(self) -> float:
        """Load the best weights into the models, for a test, after all loops of the session; all ranks call this.

        ::

            with Session(model=model, optimizer=optimizer, best="accuracy") as session:
                for epoch in session.epochs(20):
                    ...
                    session.metrics(accuracy=validate(model))
                best = session.load_best()
                session.metrics(test_accuracy=test(model))

        Everything is saved before, and the newest checkpoint keeps the last weights. Nothing is trained afterwards. A
        script whose run is done loads them again when it is started again.

        Returns:
            float: the metric of the best checkpoint, which ``best`` names.

        Raises:
            SessionError: if there is no best checkpoint; and later, if a loop of the session continues.
        """
        if not self._loops.have_ended:
            self._loops.end()
        self._opened.recorder.run(lambda recorder: recorder.wait())
        models = {name: self._components[name] for name in self._objects["model"]}
        return load_best(models, self._opened.folder.checkpoints, self._opened.comm)

    def warm_up(self, step: Callable[[], object]) -> None:
        """Call ``step``, a forward and a backward pass, and undo what it leaves; before the first epoch, on all ranks.

        With it DistributedDataParallel on three ranks or more resumes bitwise (docs/decisions/0003).

        Args:
            step: called once, without arguments; gradients and buffers are afterwards as before. Before it the global
                generators are seeded, as they are again where the next epoch begins.
        """
        modules = [unwrap(model) for model in self._objects["model"].values()]
        self._generators.seed(Purpose.EPOCH, self.epoch)
        with without_trace(modules):
            step()
