"""Goodput: the share of a run's allocated time that trained it, read from goodput.jsonl.

Each line belongs to one attempt, and its seconds are cumulative. The job script writes when the attempt began and on
how many nodes. Rank 0 (``slipway.run.goodput_clock``) writes at each save how the time was spent. The job script, or
guard.sh instead, writes when the attempt ended. They write one after the other. Reading needs only Python 3.9 and its
standard library.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from slipway.base.bounded_read import read_tail

TRAINED, WAITED, EVALUATED, SAVED, STARTED, LOST = "trained", "waited", "evaluated", "saved", "started", "lost"
MEANINGS: Dict[str, str] = {
    TRAINED: "optimizer steps that were kept",
    WAITED: "waiting for data, as the trainer measures it; in a user script's loop it counts as trained",
    EVALUATED: "between the loops over training batches: evaluation, figures",
    SAVED: "time for which saving blocked rank 0",
    STARTED: "from the job's start, or the previous death, to the first step; and the end of attempts that ended well",
    LOST: "from the last save to the end of an attempt that died: repeated steps, and time until the death was noticed",
}
"""Parts of an attempt's time; together they add up to all of it."""
MEASURED = (TRAINED, WAITED, EVALUATED, SAVED, STARTED)
"""Parts that rank 0 measures."""
START = "start"
"""Key of the line with the seconds up to the first step, by part (``slipway.base.startup_time``)."""
SHORTEST = 0.1
"""Minimum seconds of a startup part that ``describe_start`` lists."""
LIMIT = 1 << 24
"""Maximum bytes to read, from the end of the file."""


class Spent(NamedTuple):
    """Time that an attempt spent, by part."""

    attempt: int
    seconds: Dict[str, float]
    """Seconds by the names of MEANINGS."""
    nodes: int
    """Number of nodes that trained; 0 without a job script."""
    spares: int
    """Number of spare nodes that waited."""
    start: Dict[str, float]
    """Seconds from the start of rank 0 to its first step, by part; {} before the first step."""

    @property
    def total(self) -> float:
        """Total seconds of the attempt."""
        return sum(self.seconds.values())


def read_goodput(path: Path) -> List[Spent]:
    """Return the time that each attempt spent.

    Empty if the file cannot be read or has no valid lines, or if rank 0 has written none: no attempt had a Session or
    the trainer, which measure the time.
    """
    try:
        return parse_goodput(read_tail(path, limit=LIMIT)[0])
    except OSError:
        return []


def parse_goodput(content: bytes) -> List[Spent]:
    """Return the result of ``read_goodput`` for the file's content."""
    lines: Dict[int, List[Dict[str, Any]]] = {}
    for line in _lines(content):
        lines.setdefault(line["attempt"], []).append(line)
    if not any("step" in line for own in lines.values() for line in own):
        return []  # a script without a Session: only the job script has written, so nothing is known to be lost
    spent = []
    for number in sorted(number for number, own in lines.items() if any(START not in line for line in own)):
        resumed = [line["step"] for line in lines.get(number + 1, []) if "step" in line][:1]
        spent.append(_spent(number, lines[number], kept=resumed[0] if resumed else None))
    return [attempt for attempt in spent if attempt.total > 0]


def describe(attempts: Sequence[Spent]) -> str:
    """Return a one-line summary of ``attempts``; "" if their total time is 0."""
    sums = seconds_by_part(attempts)
    total = sum(sums.values())
    if not total:
        return ""
    shares = ", ".join(f"{100 * seconds / total:.1f} % {name}" for name, seconds in sums.items() if seconds)
    count = len(attempts)
    said = f"{_duration(total)} in {count} attempt{'s' * (count != 1)}: {shares}"
    spare = spare_hours(attempts)
    if spare:
        said += f"; spare nodes waited {spare:.2f} node-hours"
    started = [attempt for attempt in attempts if attempt.start]
    return f"{said}; {describe_start(started[-1].start)}" if started else said


def describe_start(parts: Dict[str, float]) -> str:
    """Return a phrase with the seconds to the first step and its parts of at least SHORTEST seconds."""
    longest = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items() if seconds >= SHORTEST)
    return f"{sum(parts.values()):.1f} s to the first step" + (f" ({longest})" if longest else "")


def seconds_by_part(attempts: Sequence[Spent]) -> Dict[str, float]:
    """Return the seconds of each part, over all ``attempts``."""
    return {name: sum(attempt.seconds[name] for attempt in attempts) for name in MEANINGS}


def spare_hours(attempts: Sequence[Spent]) -> float:
    """Return the node-hours for which spare nodes waited."""
    return sum(attempt.spares * attempt.total for attempt in attempts) / 3600


def _spent(number: int, lines: Sequence[Dict[str, Any]], *, kept: Optional[int]) -> Spent:
    """Return the time that an attempt spent.

    Args:
        number: the attempt's number.
        lines: the attempt's lines.
        kept: the step at which the next attempt began; None without a next attempt.
    """
    measured = [line for line in lines if "step" in line]
    concluded = bool(measured) and bool(measured[-1].get("concluded"))
    counted = measured
    if not concluded and kept is not None:
        counted = [line for line in measured if line["step"] <= kept] or measured[:1]
    moments = [line[name] for line in lines for name in ("began", "time", "ended") if name in line]
    seconds = dict.fromkeys(MEANINGS, 0.0)
    ended = max(moments)
    if counted:
        last = counted[-1]
        seconds.update((name, last[name]) for name in MEASURED)
        began = min([line["began"] for line in lines if "began" in line] or moments)
        seconds[STARTED] += max(0.0, last["time"] - sum(last[name] for name in MEASURED) - began)
        seconds[STARTED if concluded else LOST] += max(0.0, ended - last["time"])
    else:
        seconds[LOST] = ended - min(moments)
    nodes = [line for line in lines if "nodes" in line]
    starts = [line[START] for line in lines if START in line]
    used, spares = (nodes[-1]["nodes"], nodes[-1]["spares"]) if nodes else (0, 0)
    return Spent(number, seconds, used, spares, starts[-1] if starts else {})


def _lines(content: bytes) -> Iterator[Dict[str, Any]]:
    """Yield the valid lines; a line without an attempt belongs to the attempt of the line before."""
    attempt: Any = None
    for text in content.splitlines():
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if not isinstance(line, dict):
            continue
        line.setdefault("attempt", attempt)
        if _is_valid_line(line):
            attempt = line["attempt"]
            yield line


def _is_valid_line(line: Dict[str, Any]) -> bool:
    if START in line:
        parts = line[START]
        return isinstance(parts, dict) and all(_is_time(seconds) for seconds in parts.values()) and "time" not in line
    whole = [line[name] for name in ("attempt", "step", "nodes", "spares") if name in line]
    times = [line[name] for name in ("began", "time", "ended", *MEASURED) if name in line]
    complete = all(name in line for name in ("time", *MEASURED)) if "step" in line else "time" not in line
    return (
        complete
        and bool(times)
        and ("nodes" in line) == ("spares" in line)
        and all(type(number) is int and 0 <= number < 1 << 53 for number in whole)
        and all(_is_time(number) for number in times)
    )


def _is_time(number: Any) -> bool:
    return type(number) in (int, float) and math.isfinite(number)


def _duration(seconds: float) -> str:
    """Return ``seconds`` in hours, minutes or seconds, with the unit."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
