"""Names and numbers in what commands print, and lists of them in comments."""

from __future__ import annotations

import re
from typing import Iterable

NAMED = 8
"""Names that a comment lists; of more it says how many there are."""


def listed(names: Iterable[str]) -> str:
    """Return names for a comment: all of them, or the first and how many more there are."""
    every = list(names)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def is_plain(text: str) -> bool:
    """Return whether ``text`` is a name as schedulers have them, and no rubbish that a command printed."""
    return bool(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:+@=/-]{0,127}", text))


def number(text: str) -> int:
    """Return the whole number at the beginning of ``text``, such as "515000+"; 0 where there is none."""
    found = re.match(r"[0-9]{1,12}", text)
    return int(found[0]) if found else 0
