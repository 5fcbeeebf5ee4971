"""Time limits in Slurm's formats."""

from __future__ import annotations

import re
from typing import Optional

from jobgen.base.errors import UsageError
from jobgen.resolve.load import LARGEST

FORMATS = "MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"
SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def minutes_of(text: str) -> int:
    """Return a time limit in minutes, rounded up; ``text`` is in a format of sbatch's --time (sbatch(1)).

    Raises:
        UsageError: for another format, or a limit of 0.
    """
    seconds = _slurm_seconds(text)
    if seconds is None:
        like = _with_units(text)
        hint = f" Did you mean {_formatted(like)}?" if like else ""
        raise UsageError("bad-flag-value", f"--time {text[:60]!r} is not one of {FORMATS}.{hint}")
    minutes = -(-seconds // 60)
    if not 1 <= minutes <= LARGEST:
        raise UsageError("bad-flag-value", f"--time {text[:60]!r}: the limit must be 1 to {LARGEST} minutes.")
    return minutes


def clock(minutes: int) -> str:
    """Return a time limit as HH:MM:SS, or D-HH:MM:SS from one day on."""
    return _formatted(minutes * 60)


def _slurm_seconds(text: str) -> Optional[int]:
    found = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?", text.strip(), flags=re.ASCII)
    if not found or any(len(part or "") > len(str(LARGEST)) for part in found.groups()):
        return None
    days, *parts = found.groups()
    given = [int(part) for part in parts if part is not None]
    if days is not None:  # D-HH[:MM[:SS]]
        hours, minutes, seconds = [*given, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(given) == len(SECONDS) - 1:  # HH:MM:SS
        return (given[0] * 60 + given[1]) * 60 + given[2]
    return given[0] * 60 + (given[1] if len(given) > 1 else 0)  # MM[:SS]


def _with_units(text: str) -> int:
    """Return the seconds of a text such as 4h, 90min or 1d12h; 0 if it is none."""
    units = r"([0-9]{1,6})\s*([dhms])[a-z]*\s*"
    if not re.fullmatch(f"(?:{units})+", text.strip().lower(), flags=re.ASCII):
        return 0
    return sum(int(number) * SECONDS[unit] for number, unit in re.findall(units, text.lower(), flags=re.ASCII))


def _formatted(seconds: int) -> str:
    days, rest = divmod(seconds, SECONDS["d"])
    hours, rest = divmod(rest, SECONDS["h"])
    clock = f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock.lstrip("0") if hours else clock
