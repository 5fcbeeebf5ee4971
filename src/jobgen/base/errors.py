"""Output for users: errors and warnings, one line each with what happened, where, and what to do; other lines."""

import sys

from slipway.base.errors import SlipwayError, add_label


class JobgenError(SlipwayError):
    """A script cannot be rendered or submitted; the message states why and what to do."""


class UsageError(JobgenError):
    """A command-line argument is unknown or invalid."""


def printable(text: str) -> str:
    r"""Return ``text`` with control characters escaped (``\n``, ``\x1b``), so that a terminal does not execute them."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def say(text: str) -> None:
    """Print one line to standard output, unless it is closed."""
    if sys.stdout:
        sys.stdout.write(f"{printable(text)}\n")


def note(text: str) -> None:
    """Print one line to standard error."""
    sys.stderr.write(f"{printable(f'jobgen: {text}')}\n")


def warn(slug: str, text: str) -> None:
    """Print a one-line warning to standard error; ``slug`` is a key of ``slipway.base.slugs.SLUGS``."""
    note(add_label("warning", slug, text))
