"""Experiment trackers in addition to metrics.jsonl: TensorBoard, Weights & Biases and MLflow, by their own libraries.

Each tracker runs in a separate thread on rank 0, so that neither its errors nor an unresponsive server affect training.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from slipway.base.bounded_read import read_whole
from slipway.base.contract import MLFLOW, TENSORBOARD, TRACKERS, WANDB
from slipway.base.errors import TrackerError, one_line, warn
from slipway.base.files import write_json
from slipway.run.metrics import Record, numbers_of

log = logging.getLogger(__name__)

START_LIMIT = 30.0
"""Seconds that training waits for a tracker to start; records are queued until the tracker has started."""
END_LIMIT = 15.0
"""Seconds that the end of a run waits for a tracker; a scheduler's grace time is at least 30 s."""
IDS = threading.Lock()
"""Lock of the file of tracker ids: a tracker that starts late may write it while another one starts."""


class Backend(Protocol):
    """A tracker's library, which receives records."""

    def write(self, record: Record) -> None:
        """Log one record."""
        ...

    def end(self, *, complete: bool) -> None:
        """Flush all records and close; ``complete`` is false if an error ended the attempt."""
        ...


class TrackedRun(NamedTuple):
    """The run that a tracker records."""

    folder: Path
    """The run folder."""
    step: int
    """Optimizer steps done before this attempt."""
    variables: Mapping[str, str]
    """Environment variables, with which users configure their trackers."""


class Background:
    """A backend in a separate thread. Its first error is reported and ends only this tracker."""

    def __init__(self, name: str, start: Callable[[], Backend]) -> None:
        """Start a thread that calls ``start`` for the backend named ``name``."""
        self._name = name
        self._start = start
        self._records: queue.SimpleQueue[Record | bool] = queue.SimpleQueue()
        self._has_started = threading.Event()
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()
        # Wait for the start, because libraries may draw from the global random generators while they start.
        if not self._has_started.wait(START_LIMIT):
            warn(log, "tracker-silent", "%s does not respond; training begins without waiting for it", name)

    def write(self, record: Record) -> None:
        """Queue one record for the backend."""
        if self._thread.is_alive():
            self._records.put(record)

    def end(self, *, complete: bool) -> None:
        """End the backend and wait at most END_LIMIT seconds for it; a second call does nothing.

        Args:
            complete: whether the attempt ended normally.
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
                "%s does not respond and may lack the last records; metrics.jsonl has all records",
                self._name,
            )

    def _run(self) -> None:
        try:
            backend = self._start()
            self._has_started.set()
            while not isinstance(record := self._records.get(), bool):
                backend.write(record)
            backend.end(complete=record)
        except BaseException as error:  # noqa: BLE001 -- whatever a library raises, even SystemExit
            text = one_line(str(error)) or type(error).__name__
            warn(log, "tracker-ended", "logging to %s stopped: %s; metrics.jsonl has all records", self._name, text)
        finally:
            self._has_started.set()


class TensorBoardEvents:
    """TensorBoard event files in RUN/tensorboard: one scalar for each number of a record."""

    def __init__(self, place: TrackedRun) -> None:
        """Continue after ``place.step``; TensorBoard hides events that an earlier attempt wrote after it."""
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 -- slow to import, so only on demand

        self._writer = SummaryWriter(str(place.folder / TENSORBOARD), purge_step=place.step + 1)
        self._failed = False

    def write(self, record: Record) -> None:
        """Add one point to each curve."""
        with self._reported():
            for name, value in numbers_of(record).items():
                self._writer.add_scalar(name, value, record["step"])

    def end(self, *, complete: bool) -> None:  # noqa: ARG002 -- event files do not record it
        """Close the event file."""
        with self._reported():
            self._writer.close()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Report the first disk error, which ends the writer's thread, and ignore later ones."""
        try:
            yield
        except OSError as error:
            if not self._failed:
                warn(log, "tracker-ended", "TensorBoard events stopped: %s; metrics.jsonl has all records", error)
            self._failed = True


class WandbRun:
    """A Weights & Biases run, the same one in all attempts: offline in RUN/wandb, unless WANDB_MODE is set.

    wandb ignores steps that it already has; a resumed run repeats those with the same numbers.
    """

    def __init__(self, place: TrackedRun) -> None:
        """Begin the run, or resume it."""
        import wandb  # noqa: PLC0415 -- only on demand, as it may not be installed

        identity = _read_ids(place.folder).get("wandb") or secrets.token_hex(4)
        _save_id(place.folder, "wandb", identity)
        limits = {"init_timeout": START_LIMIT, "finish_timeout": END_LIMIT}
        known: dict[str, Any] = {name: limit for name, limit in limits.items() if hasattr(wandb.Settings(), name)}
        (place.folder / WANDB).mkdir(exist_ok=True)  # or wandb uses another folder if it cannot create this one
        self._run = wandb.init(
            id=identity,
            resume="allow",
            name=place.variables.get("WANDB_NAME") or place.folder.name,
            dir=place.folder,
            mode=place.variables.get("WANDB_MODE") or "offline",  # type: ignore[arg-type, unused-ignore]
            settings=wandb.Settings(console="off", **known),
        )

    def write(self, record: Record) -> None:
        """Log the record's numbers at its step."""
        self._run.log(numbers_of(record), step=record["step"])

    def end(self, *, complete: bool) -> None:
        """Finish the run."""
        self._run.finish(exit_code=0 if complete else 1)


class MlflowRun:
    """An MLflow run, the same one in all attempts: in RUN/mlruns, unless MLFLOW_TRACKING_URI names another store.

    This uses a separate client: module ``mlflow`` has one active run, and the script may use that itself.
    """

    def __init__(self, place: TrackedRun) -> None:
        """Begin the run, or resume it."""
        from mlflow import MlflowClient, environment_variables  # noqa: PLC0415 -- only on demand

        uri = place.variables.get("MLFLOW_TRACKING_URI")
        if not uri:
            uri = (place.folder / MLFLOW).as_uri()
            with contextlib.suppress(AttributeError):  # from versions that accept a folder without this setting
                environment_variables.MLFLOW_ALLOW_FILE_STORE.set(True)
        self._client = MlflowClient(tracking_uri=uri)
        self._identity = _read_ids(place.folder).get("mlflow", "")
        if not (self._identity and self._resume_run()):
            experiment = self._experiment(place.variables.get("MLFLOW_EXPERIMENT_NAME") or "Default")
            self._identity = self._client.create_run(experiment, run_name=place.folder.name).info.run_id
            _save_id(place.folder, "mlflow", self._identity)

    def _resume_run(self) -> bool:
        """Resume the run of earlier attempts; return False if this store does not have it."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415

        try:
            self._client.update_run(self._identity, status="RUNNING")
        except MlflowException as error:
            if error.get_http_status_code() != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def _experiment(self, name: str) -> str:
        """Return the id of the experiment ``name``; create the experiment if it is missing."""
        found = self._client.get_experiment_by_name(name)
        return found.experiment_id if found else self._client.create_experiment(name)

    def write(self, record: Record) -> None:
        """Log the record's numbers at its step."""
        from mlflow.entities import Metric  # noqa: PLC0415

        now = time.time_ns() // 1_000_000
        metrics = [Metric(name, value, now, record["step"]) for name, value in numbers_of(record).items()]
        self._client.log_batch(self._identity, metrics=metrics)

    def end(self, *, complete: bool) -> None:
        """Mark the run as finished or failed."""
        self._client.set_terminated(self._identity, "FINISHED" if complete else "FAILED")


class TrackerKind(NamedTuple):
    """An available tracker."""

    make: Callable[[TrackedRun], Backend]
    module: str
    package: str
    """The library's name for pip."""


KINDS = {
    "tensorboard": TrackerKind(TensorBoardEvents, "tensorboard", "tensorboard"),
    "wandb": TrackerKind(WandbRun, "wandb", "wandb"),
    "mlflow": TrackerKind(MlflowRun, "mlflow", "mlflow-skinny"),
}
"""The available trackers by name."""


def named_trackers(*given: str | Iterable[str]) -> list[str]:
    """Return the names in ``given``, comma-separated strings or iterables of names, without duplicates."""
    named = [name for some in given for name in (some.split(",") if isinstance(some, str) else some)]
    return list(dict.fromkeys(filter(None, map(str.strip, named))))


def require_trackers(names: Iterable[str]) -> None:
    """Raise an error unless trackers of these names exist and their libraries are installed.

    Raises:
        TrackerError: listing the available trackers or the package to install.
    """
    for name in names:
        if name not in KINDS:
            raise TrackerError("unknown-tracker", f"unknown tracker {name!r}: use one of {', '.join(KINDS)}.")
        found = importlib.util.find_spec(KINDS[name].module)
        if found is None or found.origin is None:  # the latter means a plain folder, such as a run's
            raise TrackerError(
                "tracker-not-installed", f"the tracker {name} is not installed: pip install {KINDS[name].package}."
            )


def start_trackers(names: Iterable[str], place: TrackedRun) -> list[Background]:
    """Start the trackers ``names``; only rank 0 calls this."""
    return [Background(name, lambda make=KINDS[name].make: make(place)) for name in names]  # type: ignore[misc]


def _read_ids(folder: Path) -> dict[str, str]:
    """Return the ids of the run in ``folder``, by tracker; an empty dictionary if there are none."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return dict(json.loads(read_whole(folder / TRACKERS)))
    return {}


def _save_id(folder: Path, name: str, identity: str) -> None:
    with IDS:
        write_json(folder / TRACKERS, _read_ids(folder) | {name: identity})
