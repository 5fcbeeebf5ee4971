"""How a process of the trainer ends: with the exit code of what it did, or of an error, of which it tells."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from slipway.errors import SlipwayError, one_line
from trainer.errors import ConfigError, explain

REMEDY = "take the image, or an environment made by build/setup, or pip install '.[train]' in a clone."
"""For a Python that lacks something, as the base install does, which is made for ``jobgen`` on login nodes."""


def exit_code_of(work: Callable[[], int], *, leave: Callable[[SlipwayError, str], None] | None = None) -> int:
    """Return the exit code of ``work``, or of its error: in one line, and with a traceback if it is not a user's.

    Args:
        work: what the process does.
        leave: leaves an error, and what it says, for the job script; for a rank.
    """
    try:
        return _missing_module_explained(work)
    except SlipwayError as error:
        sentence = explain(error)
        if leave:
            leave(error, sentence)
        _tell(sentence)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 -- the process ends
        traceback.print_exception(error)
        _tell(f"{type(error).__name__}: {error}")
        return SlipwayError.exit_code


def _missing_module_explained(work: Callable[[], int]) -> int:
    try:
        return work()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"", "slipway", "trainer"}:
            raise
        raise ConfigError(f"this Python lacks {error.name}: {REMEDY}") from error


def _tell(text: str) -> None:
    print(f"trainer: {one_line(text)}", file=sys.stderr, flush=True)
