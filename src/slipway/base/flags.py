"""Read the arguments of the trainer and its commands by a schema: a mistyped flag is refused in one line.

The trainer reads its command line so, and ``jobgen`` on a login node checks what a job would be submitted with. No
import outside of the standard library, and Python 3.9 suffices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Dict, List, NamedTuple, Optional

from slipway.base.errors import SlipwayError

Key = Mapping[str, Any]
"""What the schema says of one key of the configuration."""

REQUESTS = {
    "-h": "help",
    "--help": "help",
    "--version": "version",
    "--print-config": "print-config",
}
"""Flags that ask for a text, in place of training."""
CONFIG_SUFFIX = ".toml"


class ArgumentError(SlipwayError):
    """What is wrong with the arguments, in one line."""


class Arguments(NamedTuple):
    """What the arguments of the trainer say."""

    files: List[str]
    """CONFIG.toml, and the overlays behind it; of a command, what is no flag."""
    tables: Dict[str, Dict[str, Any]]
    """The values that flags set, by section and key, of the types of the schema."""
    request: str
    """The text that is asked for: a value of REQUESTS, or ""."""


def read_arguments(
    arguments: Sequence[str], schema: Mapping[str, Any], *, names: Optional[Sequence[str]] = None
) -> Arguments:
    """Return what ``arguments`` say; of a flag that is given twice the last one holds.

    Args:
        arguments: of the trainer, or of one of its commands, behind the command's name.
        schema: what ``trainer.config.schema`` returns, or configs/schema.json holds; of a command, its own.
        names: the arguments that are no flags, as RUN and FILE, of a command. The trainer itself takes .toml files.

    Raises:
        ArgumentError: for an unknown flag, an impossible value, or an argument that is neither a flag nor a file.
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
    """What a flag sets."""

    section: str
    name: str
    key: Key


def _flags(schema: Mapping[str, Any]) -> Dict[str, _Flag]:
    """Return what each flag sets."""
    return {
        key[form]: _Flag(section, name, key)
        for form in ("flag", "no_flag")
        for section, table in schema["properties"].items()
        for name, key in table["properties"].items()
        if form in key
    }


def _is_flag(argument: str) -> bool:
    """Return whether ``argument`` can only be a flag: negative numbers and a single dash are values."""
    number = re.match(r"-(\d|\.|(inf|infinity|nan)$)", argument, flags=re.IGNORECASE)
    return argument.startswith("-") and argument != "-" and not number


def _add_file(name: str, found: Arguments, names: Optional[Sequence[str]]) -> None:
    if names is not None:
        if len(found.files) == len(names):
            raise ArgumentError(
                "unexpected-argument",
                f"unexpected argument {name!r}: the command takes {' and '.join(names)} besides flags",
            )
    elif found.files and not name.endswith(CONFIG_SUFFIX):  # more likely the value of a switch
        raise ArgumentError(
            "unexpected-argument", f"unexpected argument {name!r}: no flag takes it, and it is no {CONFIG_SUFFIX} file"
        )
    found.files.append(name)


def _read_flag(argument: str, left: List[str], flags: Mapping[str, _Flag], found: Arguments) -> None:
    """Take the values of the flag ``argument`` from ``left``, and add them to ``found``."""
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
            raise ArgumentError("bad-flag-value", f"{flag} lacks a value: {_expected(key)}")
        equals = ""
        values.append(_value(flag, left.pop(0), spec))
    table[name] = values if "prefixItems" in key else values[0]


def is_utf8(text: str) -> bool:
    """Return whether ``text`` can be written as UTF-8; names of files that are not UTF-8 hold half surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _switched(flag: str, key: Key, left: List[str], *, equals: bool) -> Any:
    """Return the value of a switch: a boolean, or a word behind it that it takes in place of one."""
    words = switch_words(key)
    if flag == key["flag"] and left and left[0] in words:
        return left.pop(0)
    if equals:
        other = key["no_flag"] if flag == key["flag"] else key["flag"]
        but = f" but {' or '.join(words)}" if words and flag == key["flag"] else ""
        raise ArgumentError("bad-flag-value", f"{flag} takes no value{but}; {other} is its opposite")
    return flag == key["flag"]


def switch_words(key: Key) -> List[str]:
    """Return the words that a switch takes in place of a boolean."""
    return [word for choice in key.get("anyOf", []) for word in choice.get("enum", [])]


def _value(flag: str, text: str, spec: Key) -> Any:
    """Return the value that ``text`` spells, of a type and in the range that ``spec`` describes."""
    if not is_utf8(text):
        raise ArgumentError("bad-flag-value", f"{flag} is {text!r}: it must be UTF-8, as the records of a run are")
    for choice in spec.get("anyOf", [spec]):
        try:
            value = {"integer": int, "number": float}.get(choice["type"], str)(text)
        except ValueError:
            continue
        if _fits(value, choice):
            return value
    near = get_close_matches(text, spec.get("enum", spec.get("examples", [])), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ArgumentError("bad-flag-value", f"{flag} is {text!r}: it must be {_expected(spec)}{hint}")


def _fits(value: Any, spec: Key) -> bool:
    """Return whether ``value``, of the type that ``spec`` describes, is in its range."""
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


def _expected(spec: Key) -> str:
    """Return in words which values ``spec`` allows."""
    if "prefixItems" in spec:
        return f"{len(spec['prefixItems'])} values, each {_expected(spec['prefixItems'][0])}"
    if "anyOf" in spec:
        return ", or ".join(map(_expected, spec["anyOf"]))
    choices = spec.get("enum") or spec.get("examples")
    if choices:
        return " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
    kind = {"integer": "a whole number", "number": "a number"}.get(spec["type"], "text")
    limits = " and ".join(f"{words} {spec[limit]}" for limit, words in LIMITS.items() if limit in spec)
    return f"{kind}, {limits}" if limits else kind


def nearest_flag(flag: str, schema: Mapping[str, Any]) -> str:
    """Return the flag that an unknown one may mean; "" if none is near."""
    return _nearest(flag, _flags(schema))


def _hint(flag: str, flags: Mapping[str, _Flag]) -> str:
    near = _nearest(flag, flags)
    return f"did you mean {near}?" if near else "--help lists all"


def _nearest(flag: str, flags: Mapping[str, _Flag]) -> str:
    """Return which of ``flags`` the unknown one may mean: by its spelling, or by the words of the help texts."""
    typed = flag.lstrip("-").lower()
    names = [name[2:] for name, (_, _, key) in flags.items() if name == key["flag"] or typed.startswith("no-")]
    near = (
        get_close_matches(typed, names, n=1, cutoff=0.8)
        or _by_help(typed, flags)
        or get_close_matches(typed, names, n=1, cutoff=0.6)
    )
    return f"--{near[0]}" if near else ""


def _by_help(typed: str, flags: Mapping[str, _Flag]) -> List[str]:
    """Return the flag whose name and help text have all words of ``typed``, the shortest text first.

    A single word must be in one text only.
    """
    wanted = _words(typed)
    found = []
    for name, (_, _, key) in flags.items():
        if name == key["flag"] and wanted <= _words(f"{name} {key['description']}"):
            found.append((len(key["description"]), name[2:]))
    return [name for _, name in sorted(found)[:1]] if len(wanted) > 1 or len(found) == 1 else []


def _words(text: str) -> set[str]:
    """Return the words of ``text`` in lower case, plurals as singulars."""
    return {word.rstrip("s") for word in re.findall("[a-z0-9]+", text.lower())}
