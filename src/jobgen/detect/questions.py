"""The questions of a draft, asked at the terminal."""

from __future__ import annotations

import re
import sys
from typing import Collection

from jobgen.base.errors import JobgenError, note, printable
from jobgen.detect.draft import Draft, Question, Value
from jobgen.detect.parsing import listed
from jobgen.resolve.load import check_value

SHOWN = 20
"""Maximum choices that a question numbers; others are chosen by name."""


def is_at_terminal() -> bool:
    """Return whether questions can be asked: standard input and standard error are a terminal."""
    return all(stream and stream.isatty() for stream in (sys.stdin, sys.stderr))  # None if closed


def ask_questions(draft: Draft, keys: Collection[str]) -> None:
    """Ask the open questions about ``keys``.

    Raises:
        JobgenError: if the input ends.
    """
    for key, question in draft.open_questions():
        # the answer to the question before may be the value of the same key
        if key in keys and (question.choices or key not in draft.found):
            _ask(draft, key, question)


def take_candidates(draft: Draft) -> None:
    """Answer the open questions of fields without a value by their candidates, if they have one."""
    for key, question in draft.open_questions():
        if question.candidate is not None and key not in draft.found:
            draft.answer(key, question, question.candidate, "candidate, not confirmed")


def confirm(question: str) -> bool:
    """Ask a question whose answer is yes or no; Enter is yes."""
    while True:
        answer = _line(f"{question} [Y/n] ").lower()
        if answer in {"", "y", "yes"}:
            return True
        if answer in {"n", "no"}:
            return False


def _ask(draft: Draft, key: str, question: Question) -> None:
    """Ask one question until its answer is valid; Enter takes the value or candidate, or leaves the field out."""
    proposed = draft.found[key].value if key in draft.found else question.candidate
    source = f" ({draft.found[key].source})" if key in draft.found else ""
    numbered = question.choices[:SHOWN]
    lines = [f"{question.text}{source}", *(f"{number:3}  {name}" for number, name in enumerate(numbered, start=1))]
    if more := question.choices[SHOWN:]:
        lines.append(f"     or {listed(more)}")
    hint = f"[{_shown(proposed)}]" if proposed is not None else "[leave it out]"
    if proposed is None and question.example is not None:
        hint = f"(such as {_shown(question.example)}) {hint}"
    sys.stderr.write("\n" + "".join(f"{printable(line)}\n" for line in lines))
    while True:
        text = _line(f"{key.rpartition('.')[2].replace('_', ' ')} {hint}: ")
        try:
            value = _parsed(text, question) if text else proposed
            if value is not None:
                check_value(key, list(value) if isinstance(value, tuple) else value)
                draft.answer(key, question, value, "answered")
        except JobgenError as error:
            note(str(error))
        else:
            return


def _parsed(text: str, question: Question) -> Value:
    """Return the value of an answer: a choice by name or number, or a value of the type of the example.

    Raises:
        JobgenError: for a number that no choice has.
    """
    if text in question.choices:
        return text
    number = int(text) if re.fullmatch("[0-9]{1,6}", text) else 0
    if number and question.choices:
        count = len(question.choices[:SHOWN])
        if number > count:
            raise JobgenError("bad-value", f"{number} is not in the list: write 1 to {count}, or a name.")
        return question.choices[number - 1]
    kind = type(question.candidate if question.example is None else question.example)
    if kind is tuple:
        return (text,)
    return number if number and kind is int else text


def _shown(value: Value) -> str:
    return printable(", ".join(value) if isinstance(value, tuple) else str(value))


def _line(prompt: str) -> str:
    """Return a line of standard input, without blanks at its ends.

    Raises:
        JobgenError: if the input ends.
    """
    sys.stderr.write(printable(prompt))
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        sys.stderr.write("\n")
        raise JobgenError("site-not-saved", "the input ended before the last question: nothing was saved.")
    return line.strip()
