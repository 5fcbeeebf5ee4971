"""Check arguments of the trainer against its schema: a mistyped flag is refused in one line, before a job is submitted.

The trainer uses it before it parses, ``jobgen`` on a login node. No import outside of the standard library, and
Python 3.9 suffices. The rules are those by which tyro parses; it stays the judge of what passes here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

Key = Mapping[str, Any]
"""What the schema says of one key of the configuration."""

HELP = ("-h", "--help")
TYRO = "--tyro-"
"""Prefix of tyro's own flags, which print or write completions."""


def argument_error(arguments: Sequence[str], schema: Mapping[str, Any], *, positionals: int = 1) -> str:
    """Return the first error in ``arguments``, in one line; "" if the trainer takes them.

    Args:
        arguments: of the trainer.
        schema: what ``trainer.schema`` returns, or configs/schema.json holds.
        positionals: how many arguments may stand without a flag: 1 for CONFIG.toml, 0 where a job script gives it.
    """
    if any(argument in HELP or argument.startswith(TYRO) for argument in arguments):
        return ""
    flags = _flags(schema)
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if argument == "--":
            positionals -= len(left)
            argument, left = (left[-1] if left else ""), []
        elif _is_flag(argument):
            error = _check(argument, left, flags)
            if error:
                return error
            continue
        else:
            positionals -= 1
        if positionals < 0:
            return f"unexpected argument {argument!r}: no flag takes it"
    return ""


def _flags(schema: Mapping[str, Any]) -> dict[str, Key]:
    """Return the key that each flag sets."""
    keys = [key for section in schema["properties"].values() for key in section["properties"].values()]
    return {key[form]: key for form in ("flag", "no_flag") for key in keys if form in key}


def _is_flag(argument: str) -> bool:
    """Return whether ``argument`` can only be a flag: negative numbers and a single dash are values."""
    number = re.match(r"-(\d|\.|(inf|infinity|nan)$)", argument, flags=re.IGNORECASE)
    return argument.startswith("-") and argument != "-" and not number


def _check(argument: str, left: list[str], flags: Mapping[str, Key]) -> str:
    """Take the values of the flag ``argument`` from ``left``, and return what is wrong with it."""
    name, equals, value = argument.partition("=")
    flag = name[:2] + name[2:].replace("_", "-")
    if flag not in flags:
        return f"unknown flag {name if name.isprintable() else repr(name)}; {_hint(flag, flags)}"
    key = flags[flag]
    if key["type"] == "boolean":
        other = key["no_flag"] if flag == key["flag"] else key["flag"]
        return f"{flag} takes no value; {other} is its opposite" if equals else ""
    if equals:
        left.insert(0, value)
    for spec in key.get("prefixItems", [key]):
        if not equals and (not left or left[0] == "--" or _is_flag(left[0])):
            return f"{flag} lacks a value: {_expected(key)}"
        equals = ""
        text = left.pop(0)
        if not _fits(text, spec):
            near = get_close_matches(text, spec.get("enum", spec.get("examples", [])), n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"{flag} is {text!r}: it must be {_expected(spec)}{hint}"
    return ""


def _fits(text: str, spec: Key) -> bool:
    """Return whether ``text`` is a value of the type and in the range that ``spec`` describes."""
    if "enum" in spec:
        return text in spec["enum"]
    if spec["type"] == "string":
        return re.search(spec.get("pattern", ""), text) is not None
    try:
        number = int(text) if spec["type"] == "integer" else float(text)
    except ValueError:
        return False
    return (
        number not in (math.inf, -math.inf)
        and number >= spec.get("minimum", number)
        and number <= spec.get("maximum", number)
        and ("exclusiveMinimum" not in spec or number > spec["exclusiveMinimum"])
        and ("exclusiveMaximum" not in spec or number < spec["exclusiveMaximum"])
    )


LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


def _expected(spec: Key) -> str:
    """Return in words which values ``spec`` allows."""
    if "prefixItems" in spec:
        return f"{len(spec['prefixItems'])} values, each {_expected(spec['prefixItems'][0])}"
    choices = spec.get("enum") or spec.get("examples")
    if choices:
        return f"{', '.join(choices[:-1])} or {choices[-1]}"
    kind = {"integer": "a whole number", "number": "a number"}.get(spec["type"], "text")
    limits = " and ".join(f"{words} {spec[limit]}" for limit, words in LIMITS.items() if limit in spec)
    return f"{kind}, {limits}" if limits else kind


def _hint(flag: str, flags: Mapping[str, Key]) -> str:
    """Return which of ``flags`` the unknown one may mean: by its spelling, or by the words of the help texts."""
    typed = flag.lstrip("-").lower()
    names = [name[2:] for name, key in flags.items() if name == key["flag"] or typed.startswith("no-")]
    near = (
        get_close_matches(typed, names, n=1, cutoff=0.8)
        or _by_help(typed, flags)
        or get_close_matches(typed, names, n=1, cutoff=0.6)
    )
    return f"did you mean --{near[0]}?" if near else "--help lists all"


def _by_help(typed: str, flags: Mapping[str, Key]) -> list[str]:
    """Return the flag whose name and help text have all words of ``typed``, the shortest text first.

    A single word must be in one text only.
    """
    wanted = _words(typed)
    found: list[tuple[int, str]] = []
    for name, key in flags.items():
        if name == key["flag"] and wanted <= _words(f"{name} {key['description']}"):
            found.append((len(key["description"]), name[2:]))
    return [name for _, name in sorted(found)[:1]] if len(wanted) > 1 or len(found) == 1 else []


def _words(text: str) -> set[str]:
    """Return the words of ``text`` in lower case, plurals as singulars."""
    return {word.rstrip("s") for word in re.findall("[a-z0-9]+", text.lower())}
