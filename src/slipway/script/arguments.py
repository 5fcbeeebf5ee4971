"""Arguments of a session's methods: checked where they are given, before anything is trained."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor

from slipway.base.errors import SessionError

LONGEST = 40
"""Letters of a value that a message shows."""


def whole_number(call: str, value: Any) -> int:
    """Return a number of epochs or steps as an int; ``call`` is the method that got it.

    Raises:
        SessionError: if ``value`` is not a whole number of at least 0.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise SessionError("session-arguments", f"{call}(...) takes a whole number from 0 on, not {_shown(value)}.")
    return number


def require_iterable(loader: Any) -> None:
    """Raise a SessionError if ``session.batches`` cannot iterate ``loader``; nothing of it is read."""
    if not (hasattr(type(loader), "__iter__") or hasattr(type(loader), "__getitem__")):
        raise SessionError(
            "session-arguments", f"batches(...) takes a DataLoader or another iterable, not {_shown(loader)}."
        )


def as_number(call: str, name: str, value: Any) -> float | Tensor:
    """Return a number that a script gives: a float, or the tensor without shape where it is not on the CPU.

    Args:
        call: the method that got it, for the message.
        name: under which it was given.
        value: a tensor of one element, of any shape and real dtype, or what ``float`` takes; text is not a number.

    Raises:
        SessionError: if it is something else.
    """
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        if not value.is_cpu and value.numel() == 1 and not value.is_complex():
            return value.detach().reshape(())
        try:
            return float(value.item())
        except (RuntimeError, TypeError) as error:  # several elements, or complex
            kind = f"a tensor of {list(value.shape)} and {str(value.dtype).removeprefix('torch.')}"
            raise SessionError("not-a-number", f"{call}({name}=...) takes a number, not {kind}.") from error
    if not isinstance(value, (str, bytes, bytearray)):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise SessionError("not-a-number", f"{call}({name}=...) takes a number, not {_shown(value)}.")


def _shown(value: Any) -> str:
    """Return ``value`` as a message shows it."""
    text, kind = repr(value), type(value).__name__
    return f"{text} ({kind})" if len(text) <= LONGEST else f"a value of type {kind}"
