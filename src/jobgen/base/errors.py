"""What a user can act on: one line each, saying what, where, and what to do."""

import sys

from slipway.base.errors import SlipwayError, labelled


class JobgenError(SlipwayError):
    """No script can be made, or none submitted; the message says why and what to do."""


class UsageError(JobgenError):
    """An argument is unknown or impossible."""


def nearest(name: str, choices: "list[str]", *, cutoff: float = 0.5) -> str:
    """Return " Did you mean 'x'?" for the choice nearest to ``name``, or "" where none is near (difflib's ratio)."""
    from difflib import get_close_matches  # noqa: PLC0415 -- only needed on errors

    found = get_close_matches(name[:80], choices, n=1, cutoff=cutoff)
    return f" Did you mean {found[0]!r}?" if found else ""


def printable(text: str) -> str:
    r"""Return ``text`` on one line, control characters escaped (``\n``, ``\x1b``): a terminal obeys those in a file."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def note(text: str) -> None:
    """Print one line to standard error."""
    sys.stderr.write(f"{printable(f'jobgen: {text}')}\n")


def warn(slug: str, text: str) -> None:
    """Print one line of warning to standard error; ``slug`` as in ``slipway.base.slugs``."""
    note(labelled("warning", slug, text))
