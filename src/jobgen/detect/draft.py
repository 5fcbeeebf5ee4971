"""Draft of a site file: values with their sources, questions, and their TOML text."""

from __future__ import annotations

import json
import textwrap
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

from jobgen.base.errors import printable
from jobgen.base.job import TABLES, Site

Value = Union[str, int, bool, Tuple[str, ...]]

COLUMNS = 120
"""Line length of the file. A comment that does not fit beside its line is placed above it."""
LONGEST = 600
"""Maximum characters of a comment."""


class Found(NamedTuple):
    """A value and its source."""

    value: Value
    source: str


class Question(NamedTuple):
    """A question for the user."""

    text: str
    example: Optional[Value]
    """An answer of the right form, which is not proposed."""
    candidate: Optional[Value]
    """The proposed answer."""
    choices: Tuple[str, ...]
    """Possible answers, as far as detection found them."""


class Draft:
    """A site file during detection. Keys are fields, or ``options.NAME``."""

    def __init__(self) -> None:
        self.found: Dict[str, Found] = {}
        self.questions: Dict[str, List[Question]] = {}
        self.notes: List[str] = []

    def add(self, key: str, value: Value, source: str) -> None:
        """Set a value, unless the key already has one."""
        self.found.setdefault(key, Found(value, source))

    def add_question(
        self,
        key: str,
        question: str,
        example: Optional[Value] = None,
        *,
        candidate: Optional[Value] = None,
        choices: Iterable[str] = (),
    ) -> None:
        """Add a question about a key, or about its detected value."""
        self.questions.setdefault(key, []).append(Question(question, example, candidate, tuple(choices)))

    def open_questions(self) -> List[Tuple[str, Question]]:
        """Return the questions with choices, and those about keys without a value, each with its key."""
        pairs = [(key, question) for key, questions in self.questions.items() for question in questions]
        return [pair for pair in pairs if pair[1].choices or pair[0] not in self.found]

    def answer(self, key: str, question: Question, value: Value, source: str) -> None:
        """Set the value of a key, and remove its question; ``source`` comes before that of an unchanged value."""
        known = self.found.get(key)
        self.found[key] = Found(value, f"{source}; {known.source}" if known and known.value == value else source)
        self.questions[key].remove(question)
        if not self.questions[key]:
            del self.questions[key]

    def note(self, text: str) -> None:
        """Add a comment that belongs to no field."""
        self.notes.append(text)

    def text(self, *head: str) -> str:
        """Return the file, with ``head`` as its first comments."""
        keys = {*self.found, *self.questions}
        plain = [name for name in Site.__struct_fields__ if name in keys]
        parts = ["\n".join(_comment(line) for line in head)]
        parts += self._paragraphs([(key, key) for key in plain])
        for table in TABLES:  # which must be last in a TOML file
            inside = sorted(key for key in keys if key.startswith(f"{table}."))
            paragraphs = self._paragraphs([(key, key.partition(".")[2]) for key in inside])
            parts += [f"[{table}]\n{paragraphs[0]}", *paragraphs[1:]] if paragraphs else []
        parts.append("\n".join(_comment(text) for text in self.notes))
        return "\n\n".join(part for part in parts if part) + "\n"

    def _paragraphs(self, keys: List[Tuple[str, str]]) -> List[str]:
        """Return the lines of ``keys`` (pairs of key and name in the file) as paragraphs; questions start new ones."""
        found: List[str] = []
        for key, name in keys:
            lines = self._lines(key, name)
            if found and key not in self.questions and keys[keys.index((key, name)) - 1][0] not in self.questions:
                found[-1] += f"\n{lines}"
            else:
                found.append(lines)
        return found

    def _lines(self, key: str, name: str) -> str:
        """Return a key's questions followed by its line."""
        lines: List[str] = []
        for question in self.questions.get(key, []):
            lines.append(_comment(question.text))
            shown = question.example if question.candidate is None else question.candidate
            if shown is not None:
                lines.append(f"# {name} = {_toml(shown)}")
        if key in self.found:
            value, source = self.found[key]
            line = f"{name} = {_toml(value)}"
            beside = f"{line} # {printable(source[:COLUMNS])}"
            lines += [beside] if len(beside) <= COLUMNS else [_comment(source), line]
        return "\n".join(lines)


def _comment(text: str) -> str:
    """Return a wrapped comment, truncated to LONGEST characters."""
    shown = printable(text[:LONGEST]) + ("..." if len(text) > LONGEST else "")
    lines = textwrap.wrap(shown, COLUMNS - 2, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"# {line}" for line in lines)


def _toml(value: Value) -> str:
    """Return a value as TOML; TOML strings have the escapes of JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return "[" + ", ".join(_toml(part) for part in value) + "]"
