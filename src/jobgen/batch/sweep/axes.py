"""What a sweep varies: the keys that the command line names, with their values or ranges."""

from __future__ import annotations

import csv
import itertools
import math
import random
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from jobgen.base.errors import UsageError, nearest
from jobgen.base.job import JobSpec, Site
from jobgen.base.shell import one_line
from jobgen.jobs.trainer_flags import ArgumentError, keys_of, nearest_flag, read_arguments, switch_words

Values = Dict[str, str]
"""The value of each key, as text."""
TABLES = ("options", "cpu_options", "env")
"""Tables of a spec or a site: a dotted key of theirs is a setting of the job."""
SWITCHED = {"true": "flag", "false": "no_flag"}
"""Which flag of the schema sets a switch to a value."""
DIGITS = 4
"""Significant digits of what is drawn."""
TRIES = 1000
"""How often a trial is drawn that has been drawn before, until there are taken to be no others."""


class Range(NamedTuple):
    """From where values are drawn."""

    low: float
    high: float
    is_log: bool
    """Whether their logarithms are uniform, rather than they themselves."""
    is_whole: bool

    def at(self, share: float) -> str:
        """Return the value at ``share`` of the range, from 0 to 1."""
        if self.is_log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low + self.is_whole)
        if self.is_whole:
            return str(min(round(value) if self.is_log else math.floor(value), int(self.high)))
        text = f"{value:.{DIGITS}g}"
        return text if self.low <= float(text) <= self.high else repr(min(max(float(text), self.low), self.high))


class Axis(NamedTuple):
    """A key that is varied."""

    key: str
    """optim.lr; or --lr, of a script of a user's own."""
    text: str
    """Its values as they were given."""
    values: List[str]
    """None where there is a range."""
    range: Optional[Range]
    spec: Mapping[str, Any]
    """What the schema says of the key; {} of a flag of a script."""

    def argument(self, value: str) -> str:
        """Return the argument that sets it."""
        if "no_flag" in self.spec and value in SWITCHED:
            return str(self.spec[SWITCHED[value]])
        return f"{self.spec.get('flag', self.key)}={value}"

    def draw(self, share: float) -> str:
        """Return a value by a number from 0 to 1."""
        return self.range.at(share) if self.range else self.values[int(share * len(self.values))]


def divide(settings: List[str], schema: Mapping[str, Any], *, script: bool) -> Tuple[List[str], List[Axis]]:
    """Return the settings of the job, and the axes.

    Args:
        settings: KEY=VALUES, as the command line has them.
        schema: of the trainer's configuration.
        script: whether a script of a user's own is trained.

    Raises:
        JobgenError: for an unknown key, or an impossible value.
    """
    of_job: List[str] = []
    axes: Dict[str, Axis] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise UsageError(
                "bad-axis", f"--set {setting}: write KEY=VALUE,VALUE or, for a setting of the job, KEY=VALUE."
            )
        if not key.startswith("--") and (key.split(".")[0] in TABLES or "." not in key):
            _refuse_bare(key, schema)
            of_job.append(setting)
            continue
        if key in axes:
            raise UsageError("bad-axis", f"--set {key}: it is set twice; give all values to one, separated by commas.")
        axes[key] = _axis(key, one_line(text), schema, script=script)
    return of_job, list(axes.values())


def _refuse_bare(key: str, schema: Mapping[str, Any]) -> None:
    """Refuse a key of the trainer's configuration without its section, where the job has none of this name."""
    sections = [section for section, table in schema["properties"].items() if key in table["properties"]]
    if sections and key not in (*JobSpec.__struct_fields__, *Site.__struct_fields__):
        raise UsageError("bad-axis", f"--set {key}: no setting of the job. Did you mean '{sections[0]}.{key}'?")


def _axis(key: str, text: str, schema: Mapping[str, Any], *, script: bool) -> Axis:
    spec: Mapping[str, Any] = {}
    if key.startswith("--"):
        if not script:
            raise UsageError(
                "bad-axis", f"--set {key}: a flag is of a script of your own, and SLIPWAY_SCRIPT is not set."
            )
        if not re.fullmatch(r"--[A-Za-z0-9][\w.-]*", key, flags=re.ASCII):
            raise UsageError("bad-axis", f"--set {key}: that is no name of a flag.")
    else:
        spec = _spec_of(key, schema)
        if script:
            raise UsageError(
                "bad-axis", f"--set {key}: SLIPWAY_SCRIPT is set, and only the trainer has this key: name a --flag."
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
            "bad-axis", f"--set {key}: [launch] is of one attempt, and nothing to vary: put its flag behind --."
        )
    if key not in known:
        last = key.rpartition(".")[2]
        flag = nearest_flag(f"--{last.replace('_', '-')}", schema)
        same = [name for name, spec in known.items() if name.endswith(f".{last}") or spec["flag"] == flag]
        hint = f" Did you mean {same[0]!r}?" if same else nearest(key, list(known))
        raise UsageError("bad-axis", f"--set {key}: the trainer's configuration has no such key.{hint}")
    spec: Mapping[str, Any] = known[key]
    if "prefixItems" in spec:
        raise UsageError("bad-axis", f"--set {key}: it takes {len(spec['prefixItems'])} values, and cannot be varied.")
    return spec


def _range(key: str, text: str, spec: Mapping[str, Any]) -> Optional[Range]:
    """Return the range that ``text`` is; None if it is a list of values."""
    found = re.fullmatch(r"(log|uniform):([^:,]+):([^:,]+)", text)
    if not found:
        return None
    kind = spec.get("type", "number")
    if kind not in ("number", "integer") or "enum" in spec:
        raise UsageError(
            "bad-axis", f"--set {key}={text}: only a number has a range: list its values, separated by commas."
        )
    try:
        low, high = float(found[2]), float(found[3])
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(
            "bad-axis", f"--set {key}={text}: a range is {found[1]}:LOW:HIGH, of two numbers, the lower one first."
        )
    if found[1] == "log" and low <= 0:
        raise UsageError("bad-axis", f"--set {key}={text}: a logarithmic range begins above 0.")
    if kind == "integer" and not (low.is_integer() and high.is_integer()):
        raise UsageError("bad-axis", f"--set {key}={text}: {key} is a whole number: so are the ends of its range.")
    return Range(low, high, is_log=found[1] == "log", is_whole=kind == "integer")


def _check(axis: Axis, value: str, schema: Mapping[str, Any]) -> None:
    """Raise a UsageError if the trainer cannot have this value."""
    if not axis.spec:
        return
    if "no_flag" in axis.spec:
        words = [*SWITCHED, *switch_words(axis.spec)]
        if value not in words:
            raise UsageError("bad-axis", f"--set {axis.key}={axis.text}: {value!r} must be {' or '.join(words)}.")
        return
    try:
        read_arguments([axis.argument(value)], schema)
    except ArgumentError as error:
        raise UsageError("bad-axis", f"--set {axis.key}={axis.text}: {error}.") from error


def grid(axes: List[Axis]) -> List[Values]:
    """Return every combination of values, the last key varying fastest.

    Raises:
        UsageError: if one of them is a range.
    """
    if ranges := [axis for axis in axes if axis.range]:
        raise UsageError("bad-axis", f"--set {ranges[0].key}={ranges[0].text}: a range is drawn from: add --random N.")
    keys = [axis.key for axis in axes]
    return [dict(zip(keys, values)) for values in itertools.product(*(axis.values for axis in axes))]


def drawn(axes: List[Axis], *, count: int, seed: int) -> List[Values]:
    """Return ``count`` combinations drawn by ``seed``, no two of them the same; more begin with the same ones.

    Raises:
        UsageError: if there are not as many.
    """
    generator = random.Random(seed)
    found: Dict[Tuple[str, ...], Values] = {}
    for _ in range(TRIES * count):
        values = {axis.key: axis.draw(generator.random()) for axis in axes}
        found.setdefault(tuple(values.values()), values)
        if len(found) == count:
            return list(found.values())
    raise UsageError(
        "bad-axis", f"--random {count}: there are only {len(found)} different trials: draw fewer, or leave it out."
    )


def refuse_both(axes: List[Axis], arguments: List[str], schema: Mapping[str, Any]) -> None:
    """Refuse a key that ``arguments``, which are of all trials, set too.

    Raises:
        UsageError: if there is one.
    """
    given = {word.partition("=")[0] for word in arguments}
    if any(axis.spec for axis in axes):
        given |= keys_of(arguments, schema)
    if both := [axis.key for axis in axes if axis.key in given]:
        raise UsageError(
            "flag-conflict",
            f"{both[0]} is set behind -- for all trials, and varied by --set: leave out one of the two.",
        )
