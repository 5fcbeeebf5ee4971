"""Metrics of a run: writer and reader of metrics.jsonl, which every run has; ``trackers`` holds further writers."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import shutil
from pathlib import Path
from typing import Any

from slipway.base.bounded_read import read_whole
from slipway.base.errors import warn
from slipway.base.files import LineFile, write_atomically

log = logging.getLogger(__name__)

Record = dict[str, Any]
"""One record: "kind" (train or validation), "step", "epoch", "elapsed" in seconds, and the metrics of that kind."""


class JsonLines:
    """Writer of metrics.jsonl: one record per line, readable during training."""

    def __init__(self, path: Path, *, step: int) -> None:
        """Open ``path`` for appending, after truncating it to the records up to ``step``, where this attempt resumes.

        If lines other than the last one, which a crash may cut off, are not records, a copy of the file is kept.
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
                "%d line(s) of %s are not records; a copy of the file is kept as %s",
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


def numbers_of(record: Record) -> dict[str, float]:
    """Return the numbers of ``record`` by the names that trackers show, such as "train/loss"."""
    return {f"{record['kind']}/{name}": value for name, value in record.items() if name not in {"kind", "step"}}


def read_records(path: Path) -> list[Record]:
    """Return the records of a metrics.jsonl whose values are all numbers; an empty list if there is no file."""
    return [record for record in _parse(path) if record and _holds_numbers(record)]


def _parse(path: Path) -> list[Record | None]:
    """Return the record of each line of a file; None for a line that is not a record."""
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
