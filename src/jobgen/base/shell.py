"""Shell words for scripts: literal text, which ``quote`` quotes, and expansions, a separate type."""

from __future__ import annotations

import shlex
from typing import List, NamedTuple, Sequence, Union

from jobgen.base.errors import JobgenError

COLUMNS = 100
"""Maximum line length of a script."""


class Expansion(NamedTuple):
    """Shell text that Bash expands to exactly one word, or to one word per element of an array."""

    text: str


Word = Union[str, Expansion]
Layer = List[Word]
"""Words of one layer of a launch, before those of the next layer."""


def words_of(text: str, *, what: str) -> List[str]:
    """Split ``text`` into words as a shell does, without expansions.

    Raises:
        JobgenError: if a quote is not closed, or the text ends with a backslash. ``what`` starts the message.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise JobgenError("unclosed-quote", f"{what} {text!r}: {error}.") from error


def option(name: str, variable: str) -> Expansion:
    """Return ``--name="$variable"``."""
    return Expansion(f'{name}="${variable}"')


def array(name: str) -> Expansion:
    """Return the expansion of all elements of the array ``name``, which may be empty (Bash 4.4 with ``set -u``)."""
    return Expansion(f'"${{{name}[@]}}"')


def quote(word: Word) -> str:
    """Return ``word`` quoted for a script.

    Raises:
        JobgenError: for a literal that a line of a script cannot contain.
    """
    if isinstance(word, Expansion):
        return word.text
    return shlex.quote(require_one_line(word))


def command(words: Sequence[Word]) -> str:
    """Return the words of a command, quoted, on one line."""
    return " ".join(quote(word) for word in words)


def wrapped(layers: List[Layer], *, indent: int) -> str:
    """Return a command with each layer on a separate line; layers longer than COLUMNS are wrapped."""
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


def require_one_line(text: str) -> str:
    """Return ``text`` unchanged if a line of a script or a directive can contain it.

    Raises:
        JobgenError: if it contains a control character, which could inject lines, or bytes that are not UTF-8.
    """
    if any(ord(char) < 32 or ord(char) == 127 for char in text):  # noqa: PLR2004 -- ASCII's control characters
        raise JobgenError(
            "bad-path", f"{text!r} contains a line break or control character, which scripts cannot contain: remove it."
        )
    if any("\ud800" <= char <= "\udfff" for char in text):  # Python's encoding of such bytes (surrogateescape)
        raise JobgenError("bad-path", f"{text!r} is not UTF-8, which scripts require: rename it.")
    return text


def default(text: str) -> str:
    """Return ``text`` escaped for the default in ``: "${NAME:=text}"``, where Bash still expands and unquotes.

    Raises:
        JobgenError: for a single quote: Bash reads it as the start of a string there, even after a backslash.
    """
    if "'" in text:
        raise JobgenError(
            "bad-path",
            f"{text!r} contains a single quote, which defaults cannot contain: rename it, or set it at submission.",
        )
    return "".join("\\" + char if char in '\\"$`}' else char for char in require_one_line(text))
