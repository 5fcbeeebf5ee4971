"""``jobgen explain``: print what an error or warning means and what to do, by its slug."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Optional

from jobgen.base.errors import UsageError
from slipway.base.errors import did_you_mean
from slipway.base.slugs import SLUGS

MOST = 12
"""Maximum number of slugs that the hint for a word lists."""


def explain(slug: Optional[str], *, as_json: bool) -> int:
    """Print the entry of ``slug``, or one line for each slug if it is None; return the exit code.

    Raises:
        UsageError: if ``slug`` is unknown; the message lists the slugs whose entries mention the word.
    """
    if slug is not None and slug not in SLUGS:
        raise UsageError("bad-flag-value", f"unknown slug {slug[:80]!r}.{_hint(slug)} `jobgen explain` lists all.")
    chosen = SLUGS if slug is None else {slug: SLUGS[slug]}
    if as_json:
        text = json.dumps([{"slug": name, **entry._asdict()} for name, entry in chosen.items()], indent=2)
    elif slug is None:
        width = max(map(len, SLUGS))
        text = "\n".join(f"{name:{width}}  {entry.when}" for name, entry in SLUGS.items())
    else:
        entry = SLUGS[slug]
        text = f"{slug}\n\n{textwrap.fill(f'{entry.when} {entry.outcome}')}\n\n"
        text += textwrap.fill(f"What to do: {entry.remedy}")
    sys.stdout.write(f"{text}\n")
    return 0


def _hint(word: str) -> str:
    """Return a hint for a word that is not a slug: the slugs that mention it, or the closest one."""
    found = [slug for slug, entry in SLUGS.items() if word.lower() in f"{slug} {entry.when} {entry.remedy}".lower()]
    if not word or not found:
        return did_you_mean(word, list(SLUGS))
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return f" These mention it: {', '.join(found[:MOST])}{more}."
