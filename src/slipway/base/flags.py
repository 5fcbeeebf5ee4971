"""Parser of the trainer's command lines from a JSON schema, with one-line errors for mistyped flags.

The trainer parses its command line with it, and ``jobgen`` on a login node checks the arguments of a job before
submission. This module imports only the standard library and slipway.base, and supports Python 3.9.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Dict, List, NamedTuple, Optional

from slipway.base.errors import SlipwayError

Key = Mapping[str, Any]
"""Schema of one configuration key."""

REQUESTS = {
    "-h": "help",
    "--help": "help",
    "--version": "version",
    "--print-config": "print-config",
}
"""Flags that print a text instead of training."""
CONFIG_SUFFIX = ".toml"


class ArgumentError(SlipwayError):
    """Invalid command-line arguments; the text is one line."""


class Arguments(NamedTuple):
    """Parsed arguments of the trainer."""

    files: List[str]
    """CONFIG.toml and the overlays after it; for a command, all arguments that are not flags."""
    tables: Dict[str, Dict[str, Any]]
    """Values that flags set, by section and key, with the types of the schema."""
    request: str
    """The requested text: a value of REQUESTS, or ""."""


def read_arguments(
    arguments: Sequence[str], schema: Mapping[str, Any], *, names: Optional[Sequence[str]] = None
) -> Arguments:
    """Parse ``arguments``; if a flag is repeated, its last value wins.

    Args:
        arguments: of the trainer, or of one of its commands, after the command's name.
        schema: result of ``trainer.config.schema``, or content of configs/schema.json; for a command, its own schema.
        names: names of a command's positional arguments, such as RUN and FILE. The trainer itself takes .toml files.

    Raises:
        ArgumentError: for an unknown flag, an invalid value, or an argument that is neither a flag nor a file.
    """
    found = Arguments([], {}, next((REQUESTS[word] for word in arguments if word in REQUESTS), ""))
    if found.request in ("help", "version"):
        return found
    flags = _flags(schema)
    left = list(arguments)
    while left:
        argument = left.pop(0)
        if argument == "--":
            for name in left:
                _add_file(name, found, names)
            break
        if argument in REQUESTS:
            continue
        if _is_flag(argument):
            _read_flag(argument, left, flags, found)
        else:
            _add_file(argument, found, names)
    return found


class _Flag(NamedTuple):
    """Configuration key that a flag sets."""

    section: str
    name: str
    key: Key


def _flags(schema: Mapping[str, Any]) -> Dict[str, _Flag]:
    """Return the key of each flag."""
    return {
        key[form]: _Flag(section, name, key)
        for form in ("flag", "no_flag")
        for section, table in schema["properties"].items()
        for name, key in table["properties"].items()
        if form in key
    }


def _is_flag(argument: str) -> bool:
    """Return whether ``argument`` must be a flag: negative numbers and a single dash are values."""
    number = re.match(r"-(\d|\.|(inf|infinity|nan)$)", argument, flags=re.IGNORECASE)
    return argument.startswith("-") and argument != "-" and not number


def _add_file(name: str, found: Arguments, names: Optional[Sequence[str]]) -> None:
    if names is not None:
        if len(found.files) == len(names):
            raise ArgumentError(
                "unexpected-argument",
                f"unexpected argument {name!r}: the command takes only {' and '.join(names)} and flags",
            )
    elif found.files and not name.endswith(CONFIG_SUFFIX):  # more likely the value of a switch
        raise ArgumentError(
            "unexpected-argument", f"unexpected argument {name!r}: neither a flag's value nor a {CONFIG_SUFFIX} file"
        )
    found.files.append(name)


def _read_flag(argument: str, left: List[str], flags: Mapping[str, _Flag], found: Arguments) -> None:
    """Move the values of the flag ``argument`` from ``left`` to ``found``."""
    typed, equals, value = argument.partition("=")
    flag = typed[:2] + typed[2:].replace("_", "-")
    if flag not in flags:
        raise ArgumentError(
            "unknown-flag", f"unknown flag {typed if typed.isprintable() else repr(typed)}; {_hint(flag, flags)}"
        )
    section, name, key = flags[flag]
    table = found.tables.setdefault(section, {})
    if equals:
        left.insert(0, value)
    if "no_flag" in key:
        table[name] = _switched(flag, key, left, equals=bool(equals))
        return
    values = []
    for spec in key.get("prefixItems", [key]):
        if not equals and (not left or left[0] == "--" or _is_flag(left[0])):
            raise ArgumentError("bad-flag-value", f"{flag} requires a value: {valid_values(key)}")
        equals = ""
        values.append(_value(flag, left.pop(0), spec))
    table[name] = values if "prefixItems" in key else values[0]


def is_utf8(text: str) -> bool:
    """Return whether ``text`` can be encoded as UTF-8; file names that are not UTF-8 contain lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _switched(flag: str, key: Key, left: List[str], *, equals: bool) -> Any:
    """Return the value of a switch: a boolean, or the next word if the switch accepts it instead."""
    words = switch_words(key)
    if flag == key["flag"] and left and left[0] in words:
        return left.pop(0)
    if equals:
        other = key["no_flag"] if flag == key["flag"] else key["flag"]
        but = f" but {' or '.join(words)}" if words and flag == key["flag"] else ""
        raise ArgumentError("bad-flag-value", f"{flag} takes no value{but}; {other} is its opposite")
    return flag == key["flag"]


def switch_words(key: Key) -> List[str]:
    """Return the words that a switch accepts instead of a boolean."""
    return [word for choice in key.get("anyOf", []) for word in choice.get("enum", [])]


def _value(flag: str, text: str, spec: Key) -> Any:
    """Return ``text`` as a value of the type and range in ``spec``."""
    if not is_utf8(text):
        raise ArgumentError("bad-flag-value", f"{flag} is {text!r}: it must be UTF-8, like the records of a run")
    for choice in spec.get("anyOf", [spec]):
        try:
            value = {"integer": int, "number": float}.get(choice["type"], str)(text)
        except ValueError:
            continue
        if _fits(value, choice):
            return value
    near = get_close_matches(text, spec.get("enum", spec.get("examples", [])), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ArgumentError("bad-flag-value", f"{flag} is {text!r}: it must be {valid_values(spec)}{hint}")


def _fits(value: Any, spec: Key) -> bool:
    """Return whether ``value`` is in the range of ``spec``; its type must be the one in ``spec``."""
    if "enum" in spec:
        return value in spec["enum"]
    if spec["type"] == "string":
        return re.search(spec.get("pattern", ""), value) is not None
    return (
        value not in (math.inf, -math.inf)
        and value >= spec.get("minimum", value)
        and value <= spec.get("maximum", value)
        and ("exclusiveMinimum" not in spec or value > spec["exclusiveMinimum"])
        and ("exclusiveMaximum" not in spec or value < spec["exclusiveMaximum"])
    )


LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}


def valid_values(spec: Key) -> str:
    """Return a description of the values that ``spec`` allows."""
    if "prefixItems" in spec:
        return f"{len(spec['prefixItems'])} values, each {valid_values(spec['prefixItems'][0])}"
    if "anyOf" in spec:
        return ", or ".join(map(valid_values, spec["anyOf"]))
    choices = spec.get("enum") or spec.get("examples")
    if choices:
        return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
    kind = {"integer": "a whole number", "number": "a number"}.get(spec["type"], "text")
    limits = " and ".join(f"{words} {spec[limit]}" for limit, words in LIMITS.items() if limit in spec)
    return f"{kind}, {limits}" if limits else kind


def nearest_flag(flag: str, schema: Mapping[str, Any]) -> str:
    """Return the known flag that is nearest to an unknown one; "" if none is near."""
    return _nearest(flag, _flags(schema))


def _hint(flag: str, flags: Mapping[str, _Flag]) -> str:
    near = _nearest(flag, flags)
    return f"did you mean {near}?" if near else "--help lists all"


def _nearest(flag: str, flags: Mapping[str, _Flag]) -> str:
    """Return the nearest of ``flags``, by spelling or by the words of the help texts; "" if none is near."""
    typed = flag.lstrip("-").lower()
    names = [name[2:] for name, (_, _, key) in flags.items() if name == key["flag"] or typed.startswith("no-")]
    near = (
        get_close_matches(typed, names, n=1, cutoff=0.8)
        or _by_help(typed, flags)
        or get_close_matches(typed, names, n=1, cutoff=0.6)
    )
    return f"--{near[0]}" if near else ""


def _by_help(typed: str, flags: Mapping[str, _Flag]) -> List[str]:
    """Return the flag whose name and help text contain all words of ``typed``; prefer the shortest text.

    A single word must occur in exactly one text.
    """
    wanted = _words(typed)
    found = []
    for name, (_, _, key) in flags.items():
        if name == key["flag"] and wanted <= _words(f"{name} {key['description']}"):
            found.append((len(key["description"]), name[2:]))
    return [name for _, name in sorted(found)[:1]] if len(wanted) > 1 or len(found) == 1 else []


def _words(text: str) -> set[str]:
    """Return the words of ``text`` in lower case and singular."""
    return {word.rstrip("s") for word in re.findall("[a-z0-9]+", text.lower())}
