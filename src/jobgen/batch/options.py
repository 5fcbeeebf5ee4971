"""Options of the command line that studies and sweeps have in common, and the types of their values."""

from __future__ import annotations

import argparse
import math
import re
from typing import List


def add_common(command: argparse.ArgumentParser, *, what: str) -> None:
    """Add the options of any set of runs, called ``what``."""
    command.add_argument("--output", required=True, metavar="FOLDER", help=f"of the {what}; a run folder below it each")
    limit = "core-hours, or GPU-hours of a job with GPUs, above which it asks (default: %(default)s)"
    command.add_argument("--limit", type=hours, default=100, metavar="HOURS", help=limit)
    command.add_argument("--yes", action="store_true", help="do not ask")
    command.add_argument(
        "--dry-run", action="store_true", help="only show what would be submitted, its cost, and what would be refused"
    )


def hours(text: str) -> float:
    """Return the number of hours that ``text`` is: 0 or more, or inf.

    Raises:
        argparse.ArgumentTypeError: if it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of hours")
    return value


def count(text: str) -> int:
    """Return the number from 1 to 999999 that ``text`` is.

    Raises:
        argparse.ArgumentTypeError: if it is none.
    """
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 999999")
    return int(text)


def counts(text: str) -> List[int]:
    """Return the numbers from 1 on, separated by commas, each once.

    Raises:
        argparse.ArgumentTypeError: if one is none.
    """
    return list(dict.fromkeys(count(word) for word in text.split(",")))


def words(text: str) -> List[str]:
    """Return the words, separated by commas, each once."""
    return list(dict.fromkeys(text.split(",")))
