"""Records of numbers: as JSON lines always, and as TensorBoard events; the other trackers are in ``trackers``."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipway.base.bounded_read import read_whole
from slipway.base.errors import warn
from slipway.base.files import LineFile, write_atomically

log = logging.getLogger(__name__)

Record = dict[str, Any]
"""One record: "kind" (train or validation), "step", "epoch", "elapsed" in seconds, and the numbers of that kind."""


class JsonLines:
    """metrics.jsonl: a record a line, readable while it grows."""

    def __init__(self, path: Path, *, step: int) -> None:
        """Append to ``path``, after cutting it back to the records up to ``step``, where this attempt goes on.

        Where lines of it are no records, more than a crash cuts off, the file as it was is kept beside it.
        """
        found = _parse(path)
        damaged = found[:-1].count(None)
        if damaged:
            names = (path.with_name(f"{path.name}.damaged.{number}") for number in itertools.count(1))
            aside = next(name for name in names if not name.exists())
            shutil.copyfile(path, aside)  # not os.link, which some shared file systems refuse
            warn(
                log,
                "damaged-metrics",
                "%d line(s) of %s are no records; the file is kept as %s",
                damaged,
                path,
                aside.name,
            )
        kept = [record for record in found if record and record["step"] <= step]
        write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept))
        self._lines = LineFile(path)

    def write(self, record: Record) -> None:
        """Append one line."""
        self._lines.append(json.dumps(record))

    def close(self) -> None:
        """Close the file; see LineFile.close."""
        self._lines.close()


class TensorBoard:
    """TensorBoard events, a scalar for each number of a record."""

    def __init__(self, folder: Path, *, step: int) -> None:
        """Write into ``folder``; what an earlier attempt wrote beyond ``step`` is hidden."""
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 -- slow to import, and only on demand

        self._writer = SummaryWriter(str(folder), purge_step=step + 1)
        self._failed = False

    def write(self, record: Record) -> None:
        """Add one point to each curve."""
        with self._reported():
            for name, value in numbers_of(record).items():
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Close the event file."""
        with self._reported():
            self._writer.close()

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """Report the first error of the disk, which has ended the writer's thread, and ignore what follows from it."""
        try:
            yield
        except OSError as error:
            if not self._failed:
                warn(log, "tracker-ended", "TensorBoard events end here: %s; metrics.jsonl has all records", error)
            self._failed = True


def numbers_of(record: Record) -> dict[str, float]:
    """Return the numbers of ``record`` by the names that trackers show: "train/loss"."""
    return {f"{record['kind']}/{name}": value for name, value in record.items() if name not in {"kind", "step"}}


def read_records(path: Path) -> list[Record]:
    """Return the records of a metrics.jsonl that hold numbers; none if there is no file."""
    return [record for record in _parse(path) if record and _holds_numbers(record)]


def _parse(path: Path) -> list[Record | None]:
    """Return the record of each line of a file; None for a line that is none."""
    try:
        lines = read_whole(path).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [_record(line) for line in lines]


def _record(line: str) -> Record | None:
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(line)
        if isinstance(value, dict) and isinstance(value.get("kind"), str) and type(value.get("step")) is int:
            return value
    return None


def _holds_numbers(record: Record) -> bool:
    return all(isinstance(number, (int, float)) for name, number in record.items() if name != "kind")
