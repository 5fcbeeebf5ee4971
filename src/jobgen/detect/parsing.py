"""Helpers for names and numbers in command output, and for lists in comments."""

from __future__ import annotations

import re
from typing import Iterable

NAMED = 8
"""Maximum names that a comment lists; it counts the others."""


def listed(names: Iterable[str]) -> str:
    """Return names for a comment: all, or the first NAMED and the number of others."""
    every = list(names)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def is_plain(text: str) -> bool:
    """Return whether ``text`` is a valid scheduler name, not other output of a command."""
    return bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:+@=/-]{0,127}", text))


def number(text: str) -> int:
    """Return the whole number at the start of ``text``, such as "515000+"; 0 if there is none."""
    found = re.match(r"[0-9]{1,12}", text)
    return int(found[0]) if found else 0
