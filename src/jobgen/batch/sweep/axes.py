"""Axes of a sweep: the keys that ``--set`` varies, with their values or ranges."""

from __future__ import annotations

import csv
import itertools
import math
import random
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from jobgen.base.errors import UsageError
from jobgen.base.job import TABLES, JobSpec, Site
from jobgen.base.shell import require_one_line
from jobgen.jobs.trainer_flags import keys_of
from slipway.base.errors import did_you_mean
from slipway.base.flags import ArgumentError, nearest_flag, read_arguments, switch_words

Values = Dict[str, str]
"""Text value by key."""
SWITCH_FLAGS = {"true": "flag", "false": "no_flag"}
"""Schema field with the flag that sets a switch to a value."""
DIGITS = 4
"""Significant digits of drawn values."""
TRIES = 1000
"""Draws per requested trial before jobgen concludes that there are no more different trials."""


class Range(NamedTuple):
    """Range from which values are drawn."""

    low: float
    high: float
    is_log: bool
    """Whether the logarithms of the values are uniform, not the values."""
    is_whole: bool

    def at(self, share: float) -> str:
        """Return the value at the fraction ``share`` (0 to 1) of the range, as text."""
        if self.is_log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low + self.is_whole)
        if self.is_whole:
            return str(min(round(value) if self.is_log else math.floor(value), int(self.high)))
        text = f"{value:.{DIGITS}g}"
        return text if self.low <= float(text) <= self.high else repr(min(max(float(text), self.low), self.high))


class Axis(NamedTuple):
    """A key that the sweep varies."""

    key: str
    """Key such as optim.lr, or the flag of a user script such as --lr."""
    text: str
    """Values as given on the command line."""
    values: List[str]
    """Empty if ``range`` is set."""
    range: Optional[Range]
    spec: Mapping[str, Any]
    """Schema of the key; {} for a flag of a user script."""

    def argument(self, value: str) -> str:
        """Return the command-line argument that sets ``value``."""
        if "no_flag" in self.spec and value in SWITCH_FLAGS:
            return str(self.spec[SWITCH_FLAGS[value]])
        return f"{self.spec.get('flag', self.key)}={value}"

    def draw(self, share: float) -> str:
        """Return the value at ``share``, a random number in [0, 1)."""
        return self.range.at(share) if self.range else self.values[int(share * len(self.values))]


def divide(settings: List[str], schema: Mapping[str, Any], *, script: bool) -> Tuple[List[str], List[Axis]]:
    """Split ``--set`` values into settings of the job and axes.

    Args:
        settings: KEY=VALUES from the command line.
        schema: schema of the trainer's configuration.
        script: whether the job trains with a user script.

    Raises:
        JobgenError: for an unknown key or an invalid value.
    """
    of_job: List[str] = []
    axes: Dict[str, Axis] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(
                "bad-axis", f"--set {setting}: write KEY=VALUE,VALUE, or KEY=VALUE for a setting of the job."
            )
        if not key.startswith("--") and (key.split(".")[0] in TABLES or "." not in key):
            _reject_key_without_section(key, schema)
            of_job.append(setting)
            continue
        if key in axes:
            raise UsageError(
                "bad-axis", f"--set {key}: the key is given twice: list all values in one --set, separated by commas."
            )
        axes[key] = _axis(key, require_one_line(text), schema, script=script)
    return of_job, list(axes.values())


def _reject_key_without_section(key: str, schema: Mapping[str, Any]) -> None:
    """Reject a key of the trainer's configuration without its section, unless the job has a setting of this name."""
    sections = [section for section, table in schema["properties"].items() if key in table["properties"]]
    if sections and key not in (*JobSpec.__struct_fields__, *Site.__struct_fields__):
        raise UsageError("bad-axis", f"--set {key}: not a setting of the job. Did you mean '{sections[0]}.{key}'?")


def _axis(key: str, text: str, schema: Mapping[str, Any], *, script: bool) -> Axis:
    spec: Mapping[str, Any] = {}
    if key.startswith("--"):
        if not script:
            raise UsageError("bad-axis", f"--set {key}: flags are for user scripts, but SLIPWAY_SCRIPT is not set.")
        if not re.fullmatch(r"--[A-Za-z0-9][\w.-]*", key, flags=re.ASCII):
            raise UsageError("bad-axis", f"--set {key}: this is not a valid flag name.")
    else:
        spec = _spec_of(key, schema)
        if script:
            raise UsageError(
                "bad-axis",
                f"--set {key}: SLIPWAY_SCRIPT is set, and only the trainer has this key: give a --flag of the script.",
            )
    found = _range(key, text, spec)
    try:
        values = [] if found else list(dict.fromkeys(next(csv.reader([text], strict=True)) or [""]))
    except csv.Error as error:
        raise UsageError("bad-axis", f"--set {key}={text}: {error}.") from error
    axis = Axis(key, text, values, found, spec)
    for value in [found.at(0), found.at(1)] if found else values:
        _check(axis, value, schema)
    return axis


def _spec_of(key: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    known = {
        f"{section}.{name}": spec
        for section, table in schema["properties"].items()
        for name, spec in table["properties"].items()
        if section != "launch"
    }
    if key.startswith("launch."):
        raise UsageError(
            "bad-axis",
            f"--set {key}: a sweep cannot vary [launch], which belongs to one attempt: put its flag after --.",
        )
    if key not in known:
        last = key.rpartition(".")[2]
        flag = nearest_flag(f"--{last.replace('_', '-')}", schema)
        same = [name for name, spec in known.items() if name.endswith(f".{last}") or spec["flag"] == flag]
        hint = f" Did you mean {same[0]!r}?" if same else did_you_mean(key, list(known))
        raise UsageError("bad-axis", f"--set {key}: the trainer's configuration has no such key.{hint}")
    spec: Mapping[str, Any] = known[key]
    if "prefixItems" in spec:
        raise UsageError("bad-axis", f"--set {key}: a sweep cannot vary a key with {len(spec['prefixItems'])} values.")
    return spec


def _range(key: str, text: str, spec: Mapping[str, Any]) -> Optional[Range]:
    """Parse a range; return None if ``text`` is a list of values."""
    found = re.fullmatch(r"(log|uniform):([^:,]+):([^:,]+)", text)
    if not found:
        return None
    kind = spec.get("type", "number")
    if kind not in ("number", "integer") or "enum" in spec:
        raise UsageError(
            "bad-axis", f"--set {key}={text}: only numbers have ranges: list the values, separated by commas."
        )
    try:
        low, high = float(found[2]), float(found[3])
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(
            "bad-axis", f"--set {key}={text}: write a range as {found[1]}:LOW:HIGH with two numbers, LOW < HIGH."
        )
    if found[1] == "log" and low <= 0:
        raise UsageError("bad-axis", f"--set {key}={text}: a logarithmic range must start above 0.")
    if kind == "integer" and not (low.is_integer() and high.is_integer()):
        raise UsageError(
            "bad-axis", f"--set {key}={text}: {key} is a whole number: the ends of its range must be whole numbers too."
        )
    return Range(low, high, is_log=found[1] == "log", is_whole=kind == "integer")


def _check(axis: Axis, value: str, schema: Mapping[str, Any]) -> None:
    """Raise a UsageError if the trainer rejects this value."""
    if not axis.spec:
        return
    if "no_flag" in axis.spec:
        words = [*SWITCH_FLAGS, *switch_words(axis.spec)]
        if value not in words:
            raise UsageError("bad-axis", f"--set {axis.key}={axis.text}: {value!r} must be {' or '.join(words)}.")
        return
    try:
        read_arguments([axis.argument(value)], schema)
    except ArgumentError as error:
        raise UsageError("bad-axis", f"--set {axis.key}={axis.text}: {error}.") from error


def grid(axes: List[Axis]) -> List[Values]:
    """Return all combinations of values; the last key varies fastest.

    Raises:
        UsageError: if an axis is a range.
    """
    if ranges := [axis for axis in axes if axis.range]:
        raise UsageError(
            "bad-axis", f"--set {ranges[0].key}={ranges[0].text}: a range needs random trials: add --random N."
        )
    keys = [axis.key for axis in axes]
    return [dict(zip(keys, values)) for values in itertools.product(*(axis.values for axis in axes))]


def drawn(axes: List[Axis], *, count: int, seed: int) -> List[Values]:
    """Return ``count`` different random combinations; a larger ``count`` starts with the same ones for a ``seed``.

    Raises:
        UsageError: if there are fewer different combinations.
    """
    generator = random.Random(seed)
    found: Dict[Tuple[str, ...], Values] = {}
    for _ in range(TRIES * count):
        values = {axis.key: axis.draw(generator.random()) for axis in axes}
        found.setdefault(tuple(values.values()), values)
        if len(found) == count:
            return list(found.values())
    raise UsageError(
        "bad-axis", f"--random {count}: only {len(found)} different trials exist: draw fewer, or remove --random."
    )


def reject_keys_given_twice(axes: List[Axis], arguments: List[str], schema: Mapping[str, Any]) -> None:
    """Reject a varied key that ``arguments``, which apply to all trials, set too.

    Raises:
        UsageError: if there is such a key.
    """
    given = {word.partition("=")[0] for word in arguments}
    if any(axis.spec for axis in axes):
        given |= keys_of(arguments, schema)
    if both := [axis.key for axis in axes if axis.key in given]:
        raise UsageError(
            "flag-conflict",
            f"{both[0]} is set after -- for all trials and varied by --set: remove one of them.",
        )
