"""Validation of the arguments of Session methods."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from slipway.base.errors import SessionError
from slipway.checkpoint.shards import is_sharded

LONGEST = 40
"""Maximum number of characters of a value in a message."""


def whole_number(call: str, value: Any) -> int:
    """Return a number of epochs or steps as an int; ``call`` is the method's name, for the message.

    Raises:
        SessionError: if ``value`` is not a whole number of at least 0.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        raise SessionError("session-arguments", f"{call}(...) takes a whole number of at least 0, not {_shown(value)}.")
    return number


def as_device(call: str, value: Any) -> torch.device:
    """Return ``value`` as a device, a GPU with its index; ``call`` is the method's name, for the message.

    Raises:
        SessionError: if it is not a device, or a GPU that torch does not find.
    """
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise SessionError("session-arguments", f"{call}(device=...) takes a device, not {_shown(value)}.") from error
    if device.type != "cuda":
        return device
    if (device.index or 0) >= torch.cuda.device_count():
        raise SessionError(
            "no-gpu", f"{call}(device=...): {device}, but torch finds {torch.cuda.device_count()} GPU(s) here."
        )
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def require_iterable(loader: Any) -> None:
    """Raise a SessionError if ``loader`` is not iterable, without reading from it."""
    if not (hasattr(type(loader), "__iter__") or hasattr(type(loader), "__getitem__")):
        raise SessionError(
            "session-arguments", f"batches(...) takes a DataLoader or another iterable, not {_shown(loader)}."
        )


def as_number(call: str, name: str, value: Any) -> float | Tensor:
    """Return ``value`` as a float, or as a zero-dimensional tensor if it is a tensor on another device than the CPU.

    Args:
        call: the method that got the value, for the message.
        name: the value's name, for the message.
        value: a tensor of one element, of any shape and real dtype, or an argument that ``float`` accepts except text.

    Raises:
        SessionError: if ``value`` is not a number.
    """
    if type(value) is float:
        return value
    if isinstance(value, Tensor):
        if is_sharded(value):  # such as the norm of a sharded model's gradients
            value = value.full_tensor()  # type: ignore[attr-defined] # a DTensor
        if not value.is_cpu and value.numel() == 1 and not value.is_complex():
            return value.detach().reshape(())
        try:
            return float(value.item())
        except (RuntimeError, TypeError) as error:  # several elements, or complex
            kind = f"a tensor of shape {list(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
            raise SessionError("not-a-number", f"{call}({name}=...) takes a number, not {kind}.") from error
    if not isinstance(value, (str, bytes, bytearray)):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise SessionError("not-a-number", f"{call}({name}=...) takes a number, not {_shown(value)}.")


def _shown(value: Any) -> str:
    """Return ``value`` as text for a message: its repr if short, else its type."""
    text, kind = repr(value), type(value).__name__
    return f"{text} ({kind})" if len(text) <= LONGEST else f"a value of type {kind}"
