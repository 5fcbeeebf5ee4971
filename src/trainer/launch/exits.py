"""How a process of the trainer ends: with the exit code of what it did, or of an error, of which it tells."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from slipway.base.errors import SlipwayError, code_of, message_of
from trainer.config.errors import ConfigError

REMEDY = "take the image, or an environment made by build/setup, or pip install '.[train]' in a clone."
"""For a Python that lacks something, as the base install does, which is made for ``jobgen`` on login nodes."""


def exit_code_of(work: Callable[[], int], *, leave: Callable[[SlipwayError], None] | None = None) -> int:
    """Return the exit code of ``work``, or of its error: in one line, and with a traceback if it is not a user's.

    Args:
        work: what the process does.
        leave: leaves an error for the job script; for a rank.
    """
    try:
        return _missing_module_explained(work)
    except Exception as error:  # noqa: BLE001 -- the process ends
        if not isinstance(error, SlipwayError):
            traceback.print_exception(error)
        elif leave:
            leave(error)
        print(f"trainer: {message_of(error)}", file=sys.stderr, flush=True)
        return code_of(error)


def _missing_module_explained(work: Callable[[], int]) -> int:
    try:
        return work()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"", "slipway", "trainer"}:
            raise
        raise ConfigError("missing-package", f"this Python lacks {error.name}: {REMEDY}") from error
