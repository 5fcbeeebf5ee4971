"""Command-line options that studies and sweeps share, and the types of their values."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any, List, Type, TypeVar

R = TypeVar("R")


def add_common(command: argparse.ArgumentParser, *, what: str) -> None:
    """Add the options of any set of runs; ``what`` is "study" or "sweep"."""
    folder = f"folder of the {what} and its run folders"
    command.add_argument("--output", dest="folder", type=Path, required=True, metavar="FOLDER", help=folder)
    limit = "core-hours (GPU-hours for jobs with GPUs) above which jobgen requests confirmation (default: %(default)s)"
    command.add_argument("--limit", type=hours, default=100, metavar="HOURS", help=limit)
    command.add_argument("--yes", action="store_true", help="submit without confirmation")
    command.add_argument("--dry-run", action="store_true", help="print the jobs, their cost and errors; submit nothing")


def request_of(kind: Type[R], arguments: argparse.Namespace, **others: Any) -> R:
    """Return the ``arguments`` as the NamedTuple ``kind``, which has a field for each of their names and ``others``."""
    names: List[str] = [name for name in kind._fields if name not in others]  # type: ignore[attr-defined]
    return kind(**{name: getattr(arguments, name) for name in names}, **others)


def hours(text: str) -> float:
    """Parse a number of hours: 0 or more, or inf.

    Raises:
        argparse.ArgumentTypeError: if ``text`` is not such a number.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours")
    return value


def count(text: str) -> int:
    """Parse a whole number from 1 to 999999.

    Raises:
        argparse.ArgumentTypeError: if ``text`` is not such a number.
    """
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 999999")
    return int(text)


def counts(text: str) -> List[int]:
    """Parse comma-separated whole numbers from 1 to 999999, without duplicates.

    Raises:
        argparse.ArgumentTypeError: if a part is not such a number.
    """
    return list(dict.fromkeys(count(word) for word in text.split(",")))


def words(text: str) -> List[str]:
    """Parse comma-separated words, without duplicates."""
    return list(dict.fromkeys(text.split(",")))
