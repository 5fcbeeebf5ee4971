"""Shell words: literal text, which one function quotes, and expansions, which are a type of their own."""

from __future__ import annotations

import shlex
from typing import NamedTuple, Union

from jobgen.errors import JobgenError


class Expansion(NamedTuple):
    """Shell text that Bash expands to just one word, or, for an array, to one word an element."""

    text: str


Word = Union[str, Expansion]


def variable(name: str, *, option: str = "") -> Expansion:
    """Return ``"$name"``, or ``--option="$name"``."""
    return Expansion(f'{option}="${name}"' if option else f'"${name}"')


def array(name: str) -> Expansion:
    """Return all elements of the array ``name``, none where it is empty (Bash 4.4 and later under ``set -u``)."""
    return Expansion(f'"${{{name}[@]}}"')


def quote(word: Word) -> str:
    """Return ``word`` as it stands in a script.

    Raises:
        JobgenError: for a literal that no line of a script can hold.
    """
    if isinstance(word, Expansion):
        return word.text
    return shlex.quote(one_line(word))


def one_line(text: str) -> str:
    """Return ``text`` if a line of a script, or a scheduler's directive, can hold it.

    Raises:
        JobgenError: if it holds a newline or NUL, behind which anything could follow.
    """
    if any(bad in text for bad in "\n\r\0"):
        raise JobgenError(f"{text!r} holds a line break or NUL, which no directive or setting can: remove it.")
    return text


def default(text: str) -> str:
    """Return ``text`` as the default in ``: "${NAME:=text}"``, where Bash still expands and unquotes.

    Raises:
        JobgenError: for a single quote: there Bash takes it for the start of a string, and a backslash does not help.
    """
    if "'" in text:
        raise JobgenError(f"{text!r} holds a single quote, which no default can: rename it, or set it outside.")
    return "".join("\\" + char if char in '\\"$`}' else char for char in one_line(text))
