"""Shell words: literal text, which one function quotes, and expansions, which are a type of their own."""

from __future__ import annotations

import shlex
from typing import List, NamedTuple, Sequence, Union

from jobgen.base.errors import JobgenError

COLUMNS = 100
"""Longest line of a script."""


class Expansion(NamedTuple):
    """Shell text that Bash expands to just one word, or, for an array, to one word an element."""

    text: str


Word = Union[str, Expansion]
Layer = List[Word]
"""The words that one layer of a launch puts before the next one."""


def words_of(text: str, *, what: str) -> List[str]:
    """Return the words of ``text``, split as by a shell, which then does nothing else with them.

    Raises:
        JobgenError: if a quote in it is not closed, or it ends in a backslash; ``what`` says where it stands.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise JobgenError("unclosed-quote", f"{what} {text!r}: {error}.") from error


def option(name: str, variable: str) -> Expansion:
    """Return ``--name="$variable"``."""
    return Expansion(f'{name}="${variable}"')


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


def command(words: Sequence[Word]) -> str:
    """Return a command on one line."""
    return " ".join(quote(word) for word in words)


def wrapped(layers: List[Layer], *, indent: int) -> str:
    """Return one command, each layer on a line of its own, and on more where it is longer than COLUMNS."""
    lines: List[str] = []
    for number, layer in enumerate(layers):
        line = " " * (indent if number == 0 else indent + 4)
        start = len(line)
        for word in (quote(word) for word in layer):
            if len(line) + len(word) + 2 > COLUMNS and len(line) > start:
                lines.append(line.rstrip())
                line = " " * (indent + 4 if number == 0 else indent + 8)
                start = len(line)
            line += word + " "
        lines.append(line.rstrip())
    return " \\\n".join(lines)


def one_line(text: str) -> str:
    """Return ``text`` if a line of a script, or a scheduler's directive, can hold it.

    Raises:
        JobgenError: if it holds a control character, behind which anything could follow, or bytes that are not UTF-8.
    """
    if any(ord(char) < 32 or ord(char) == 127 for char in text):  # noqa: PLR2004 -- ASCII's control characters
        raise JobgenError(
            "bad-path", f"{text!r} holds a line break or control character, which no script can: remove it."
        )
    if any("\ud800" <= char <= "\udfff" for char in text):  # how Python shows such bytes
        raise JobgenError("bad-path", f"{text!r} is not UTF-8, and a script is: rename it.")
    return text


def default(text: str) -> str:
    """Return ``text`` as the default in ``: "${NAME:=text}"``, where Bash still expands and unquotes.

    Raises:
        JobgenError: for a single quote: there Bash takes it for the start of a string, and a backslash does not help.
    """
    if "'" in text:
        raise JobgenError(
            "bad-path", f"{text!r} holds a single quote, which no default can: rename it, or set it outside."
        )
    return "".join("\\" + char if char in '\\"$`}' else char for char in one_line(text))
