"""Profiles recorded by --profile, as the page shows them."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from slipway.base.contract import PROFILE
from slipway.report.files.attempts import json_of
from slipway.report.files.untrusted_folder import Folder

MOST = 64
"""Maximum number of ranks shown."""


class Profile(NamedTuple):
    """Profile of the steps that a rank recorded."""

    rank: int
    first: int
    last: int
    seconds: float
    gpu: bool
    """Whether operator times are those of GPU kernels."""
    parts: list[tuple[str, float, float]]
    """Each part of the steps: name, seconds, and share of the total; the rest is last."""
    operators: list[tuple[str, int, float, float]]
    """The most expensive operators: name, calls, seconds, and share of the total."""


def read_profiles(folder: Folder) -> list[Profile]:
    """Return the profiles in the run ``folder``, in the order of ranks."""
    names = (re.fullmatch(r"rank(\d{1,6})\.json", name) for name in folder.names(PROFILE))
    ranks = sorted(int(name[1]) for name in names if name)
    profiles = [_profile(rank, json_of(folder, f"{PROFILE}/rank{rank}.json")) for rank in ranks[:MOST]]
    return [profile for profile in profiles if profile]


def _profile(rank: int, found: dict[str, Any]) -> Profile | None:
    """Return the profile in a file's content; None if it is invalid."""
    try:
        first, last = (int(step) for step in found["steps"])
        seconds = _seconds(found["seconds"])
        parts = [(str(name), _seconds(value), _seconds(value) / seconds) for name, value in found["parts"].items()]
        rest = max(0.0, seconds - sum(value for _, value, _ in parts))
        parts.append(("the rest", rest, rest / seconds))
        operators = [
            (str(row["name"]), int(row["calls"]), _seconds(row["seconds"]), _seconds(row["seconds"]) / seconds)
            for row in found["operators"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError):
        return None
    return Profile(rank, first, last, seconds, found.get("device") == "cuda", parts, operators)


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(value)
    return seconds
