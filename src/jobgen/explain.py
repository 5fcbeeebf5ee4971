"""``jobgen explain``: what an error or a warning means, and what to do, by its slug."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Optional

from jobgen.errors import UsageError, nearest
from slipway.slugs import SLUGS


def explain(slug: Optional[str], *, as_json: bool) -> int:
    """Print the entry of ``slug``, or all slugs, a line each, and return the exit code.

    Raises:
        UsageError: if there is no such slug.
    """
    if slug is not None and slug not in SLUGS:
        hint = nearest(slug, list(SLUGS))
        raise UsageError("bad-flag-value", f"there is no error {slug[:80]!r}.{hint} `jobgen explain` lists all.")
    chosen = SLUGS if slug is None else {slug: SLUGS[slug]}
    if as_json:
        text = json.dumps([{"slug": name, **entry._asdict()} for name, entry in chosen.items()], indent=2)
    elif slug is None:
        width = max(map(len, SLUGS))
        text = "\n".join(f"{name:{width}}  {entry.when}" for name, entry in SLUGS.items())
    else:
        entry = SLUGS[slug]
        code = f"exit code {entry.exit_code}" if entry.exit_code else "a warning: the program continues"
        text = f"{slug} ({code})\n\n{textwrap.fill(entry.when)}\n\n{textwrap.fill(f'What to do: {entry.remedy}')}"
    sys.stdout.write(f"{text}\n")
    return 0
