"""Experiment trackers beside metrics.jsonl: TensorBoard, Weights & Biases and MLflow, each by its own library.

A tracker works in a thread of its own, on rank 0: neither its errors nor a server that does not answer reach training.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from slipway.base.bounded_read import read_whole
from slipway.base.contract import MLFLOW, TENSORBOARD, TRACKERS, WANDB
from slipway.base.errors import TrackerError, one_line, warn
from slipway.base.files import write_json
from slipway.run.metrics import Record, TensorBoard, numbers_of

log = logging.getLogger(__name__)

START_LIMIT = 30.0
"""Seconds that training waits for a tracker at its start; what is recorded until that has succeeded is kept."""
END_LIMIT = 15.0
"""Seconds that the end of a run waits for a tracker; a scheduler's grace is 30 s and more."""
IDS = threading.Lock()
"""Of the file of ids, into which a tracker that starts late may write while another one starts."""


class Backend(Protocol):
    """A library that takes records."""

    def write(self, record: Record) -> None:
        """Take one record."""
        ...

    def end(self, *, complete: bool) -> None:
        """Make everything durable; ``complete`` unless an error has ended the attempt."""
        ...


class TrackedRun(NamedTuple):
    """The run that a tracker records."""

    folder: Path
    """The run folder."""
    step: int
    """Optimiser steps done before this attempt."""
    variables: Mapping[str, str]
    """The environment, in which users set up their trackers."""


class Background:
    """A backend in a thread of its own. Its first error is reported, and ends this tracker alone."""

    def __init__(self, name: str, start: Callable[[], Backend]) -> None:
        """Let the thread ``start`` the backend called ``name``."""
        self._name = name
        self._start = start
        self._records: queue.SimpleQueue[Record | bool] = queue.SimpleQueue()
        self._has_started = threading.Event()
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()
        # Until then, for libraries may draw from the global generators while they start.
        if not self._has_started.wait(START_LIMIT):
            warn(log, "tracker-silent", "%s does not answer; training begins without it", name)

    def write(self, record: Record) -> None:
        """Hand over one record."""
        if self._thread.is_alive():
            self._records.put(record)

    def end(self, *, complete: bool) -> None:
        """Wait for END_LIMIT seconds until everything is handed over; does nothing where it has ended before.

        Args:
            complete: whether the attempt has ended in good order.
        """
        if self._has_ended:
            return
        self._has_ended = True
        self._records.put(complete)
        self._thread.join(END_LIMIT)
        if self._thread.is_alive():
            warn(
                log,
                "tracker-silent",
                "%s does not answer, and may lack the last records; metrics.jsonl has them all",
                self._name,
            )

    def _run(self) -> None:
        try:
            backend = self._start()
            self._has_started.set()
            while not isinstance(record := self._records.get(), bool):
                backend.write(record)
            backend.end(complete=record)
        except BaseException as error:  # noqa: BLE001 -- whatever a library raises, SystemExit too
            text = one_line(str(error)) or type(error).__name__
            warn(log, "tracker-ended", "%s ends here: %s; metrics.jsonl has all records", self._name, text)
        finally:
            self._has_started.set()


class TensorBoardEvents:
    """Event files in RUN/tensorboard."""

    def __init__(self, place: TrackedRun) -> None:
        """Go on behind ``place.step``."""
        self._writer = TensorBoard(place.folder / TENSORBOARD, step=place.step)
        self.write = self._writer.write

    def end(self, *, complete: bool) -> None:  # noqa: ARG002 -- event files do not tell
        """Close the event file."""
        self._writer.close()


class WandbRun:
    """A run of Weights & Biases, the same one in all attempts: offline in RUN/wandb, unless WANDB_MODE says otherwise.

    wandb itself passes over steps that it has had, which a resumed run takes again with the same numbers.
    """

    def __init__(self, place: TrackedRun) -> None:
        """Begin the run, or go on with it."""
        import wandb  # noqa: PLC0415 -- only on demand, as it may not be installed

        identity = _read_ids(place.folder).get("wandb") or secrets.token_hex(4)
        _keep_id(place.folder, "wandb", identity)
        limits = {"init_timeout": START_LIMIT, "finish_timeout": END_LIMIT}
        known: dict[str, Any] = {name: limit for name, limit in limits.items() if hasattr(wandb.Settings(), name)}
        (place.folder / WANDB).mkdir(exist_ok=True)  # or wandb takes another folder where it may not make this one
        self._run = wandb.init(
            id=identity,
            resume="allow",
            name=place.variables.get("WANDB_NAME") or place.folder.name,
            dir=place.folder,
            mode=place.variables.get("WANDB_MODE") or "offline",  # type: ignore[arg-type, unused-ignore]
            settings=wandb.Settings(console="off", **known),
        )

    def write(self, record: Record) -> None:
        """Log the numbers at their step."""
        self._run.log(numbers_of(record), step=record["step"])

    def end(self, *, complete: bool) -> None:
        """Finish the run."""
        self._run.finish(exit_code=0 if complete else 1)


class MlflowRun:
    """A run of MLflow, the same one in all attempts: in RUN/mlruns, unless MLFLOW_TRACKING_URI names another store.

    A client of its own, as the script may use ``mlflow``, which has one active run, for itself.
    """

    def __init__(self, place: TrackedRun) -> None:
        """Begin the run, or go on with it."""
        from mlflow import MlflowClient, environment_variables  # noqa: PLC0415 -- only on demand

        uri = place.variables.get("MLFLOW_TRACKING_URI")
        if not uri:
            uri = (place.folder / MLFLOW).as_uri()
            with contextlib.suppress(AttributeError):  # of versions that take a folder without being asked
                environment_variables.MLFLOW_ALLOW_FILE_STORE.set(True)
        self._client = MlflowClient(tracking_uri=uri)
        self._identity = _read_ids(place.folder).get("mlflow", "")
        if not (self._identity and self._goes_on()):
            experiment = self._experiment(place.variables.get("MLFLOW_EXPERIMENT_NAME") or "Default")
            self._identity = self._client.create_run(experiment, run_name=place.folder.name).info.run_id
            _keep_id(place.folder, "mlflow", self._identity)

    def _goes_on(self) -> bool:
        """Go on with the run of earlier attempts; return False if this store does not have it."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        try:
            self._client.update_run(self._identity, status="RUNNING")
        except MlflowException as error:
            if error.get_http_status_code() != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def _experiment(self, name: str) -> str:
        """Return the id of the experiment ``name``, which is made where it is missing."""
        found = self._client.get_experiment_by_name(name)
        return found.experiment_id if found else self._client.create_experiment(name)

    def write(self, record: Record) -> None:
        """Log the numbers at their step."""
        from mlflow.entities import Metric  # noqa: PLC0415

        now = time.time_ns() // 1_000_000
        metrics = [Metric(name, value, now, record["step"]) for name, value in numbers_of(record).items()]
        self._client.log_batch(self._identity, metrics=metrics)

    def end(self, *, complete: bool) -> None:
        """Say that the run has ended."""
        self._client.set_terminated(self._identity, "FINISHED" if complete else "FAILED")


class TrackerKind(NamedTuple):
    """A tracker that there is."""

    make: Callable[[TrackedRun], Backend]
    module: str
    package: str
    """What pip calls its library."""


KINDS = {
    "tensorboard": TrackerKind(TensorBoardEvents, "tensorboard", "tensorboard"),
    "wandb": TrackerKind(WandbRun, "wandb", "wandb"),
    "mlflow": TrackerKind(MlflowRun, "mlflow", "mlflow-skinny"),
}
"""The trackers by their names."""


def named_trackers(*given: str | Iterable[str]) -> list[str]:
    """Return all names that are ``given``, by texts with commas or one by one, each once."""
    named = [name for some in given for name in (some.split(",") if isinstance(some, str) else some)]
    return list(dict.fromkeys(filter(None, map(str.strip, named))))


def require_trackers(names: Iterable[str]) -> None:
    """Make sure that there are trackers of these names, and that their libraries are installed.

    Raises:
        TrackerError: naming the ones that there are, or what to install.
    """
    for name in names:
        if name not in KINDS:
            raise TrackerError("unknown-tracker", f"there is no tracker {name!r}: take {', '.join(KINDS)}.")
        found = importlib.util.find_spec(KINDS[name].module)
        if found is None or found.origin is None:  # the latter is a mere folder, such as a run's
            raise TrackerError(
                "tracker-not-installed", f"the tracker {name} is not installed: pip install {KINDS[name].package}."
            )


def start_trackers(names: Iterable[str], place: TrackedRun) -> list[Background]:
    """Start the trackers ``names``; rank 0 alone calls this."""
    return [Background(name, lambda make=KINDS[name].make: make(place)) for name in names]  # type: ignore[misc]


def _read_ids(folder: Path) -> dict[str, str]:
    """Return by which ids trackers know the run in ``folder``."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return dict(json.loads(read_whole(folder / TRACKERS)))
    return {}


def _keep_id(folder: Path, name: str, identity: str) -> None:
    with IDS:
        write_json(folder / TRACKERS, _read_ids(folder) | {name: identity})
