"""Exit codes of the trainer's processes, and the report of the error that ends one."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from slipway.base.errors import SlipwayError, code_of, error_line
from trainer.config.errors import ConfigError

REMEDY = "use the image or an environment made by build/setup, or run pip install '.[train]' in a clone."
"""Remedy for a Python that lacks a package, such as the base install, which is for ``jobgen`` on login nodes."""


def run_to_exit_code(work: Callable[[], int], *, on_error: Callable[[SlipwayError], None] | None = None) -> int:
    """Run ``work`` and return its exit code; print an error as one line, after a traceback if it is not a SlipwayError.

    Args:
        work: the process's work; returns an exit code.
        on_error: writes an error where the job script reads it; for ranks only.
    """
    try:
        return _explain_missing_module(work)
    except Exception as error:  # noqa: BLE001 -- the process ends
        if not isinstance(error, SlipwayError):
            traceback.print_exception(error)
        elif on_error:
            on_error(error)
        print(f"trainer: {error_line(error)}", file=sys.stderr, flush=True)
        return code_of(error)


def _explain_missing_module(work: Callable[[], int]) -> int:
    try:
        return work()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"", "slipway", "trainer"}:
            raise
        raise ConfigError("missing-package", f"this Python lacks {error.name}: {REMEDY}") from error
