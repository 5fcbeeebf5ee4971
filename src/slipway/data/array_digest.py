"""Digests of tensors, arrays and lists of numbers in a loader and its parts, cheap enough to compute at each save."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipway.checkpoint.values import obstacle

MAX_BYTES = 1 << 20
"""Maximum bytes digested of a tensor, array or list; of a larger one, evenly spaced elements are digested."""
BYTES_OF_NUMBER = 64
"""Bytes that a number in a list counts as: it takes longer to digest than a number in an array."""
MAX_TEXT = 40
"""Maximum characters of a list's text that is used in place of a digest."""
BITS = {torch.bfloat16: torch.int16}
"""Dtypes that numpy lacks, and the dtypes as which their elements are read."""


def data_digest_of(value: object) -> str:
    """Return dtype, shape and digest of a tensor, an array or a list of numbers; "" if ``value`` is none of these.

    For data on a GPU, in a mapped file, or without numbers, return only dtype and shape: reading it may take long.
    """
    if isinstance(value, (list, tuple)):
        return _of_numbers(value)
    if not isinstance(value, (Tensor, np.ndarray, np.generic)):
        return ""
    if isinstance(value, Tensor) and value.is_nested:  # it has no shape
        return ""
    elements = _in_memory(value)
    named = f"{value.dtype} {list(value.shape)}".removeprefix("torch.")
    if elements is None:
        return named
    return f"{named} {elements.item() if elements.size == 1 else _digest(_some(elements))}"


def _of_numbers(values: Sequence[Any]) -> str:
    some = [values[place] for place in _places(len(values), MAX_BYTES // BYTES_OF_NUMBER)]
    if not some or not all(isinstance(value, (int, float)) for value in some):
        return ""
    text = repr(some)
    return f"{type(values).__name__} [{len(values)}] {text if len(text) <= MAX_TEXT else _digest(text.encode())}"


def _in_memory(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the elements of ``value``, without a copy; None if they are not numbers in memory."""
    if isinstance(value, Tensor):
        if value.device.type != "cpu" or obstacle(value) or value.untyped_storage().filename:
            return None
        value = value.detach().resolve_conj().resolve_neg()
        value = value.view(BITS.get(value.dtype, torch.uint8 if value.dtype.itemsize == 1 else value.dtype)).numpy()
    found: np.ndarray[Any, Any] = np.asarray(value)
    base: object = found
    while isinstance(base, np.ndarray):
        base = base.base
    return None if isinstance(base, mmap.mmap) or found.dtype.kind not in "biufc" else found


def _some(elements: np.ndarray[Any, Any]) -> bytes:
    if elements.nbytes > MAX_BYTES:
        places = _places(elements.size, MAX_BYTES // elements.itemsize)
        elements = elements[np.unravel_index(places, elements.shape)]
    return elements.tobytes()


def _places(count: int, most: int) -> Any:
    """Return at most ``most`` evenly spaced indices below ``count``."""
    return range(count) if count <= most else np.linspace(0, count - 1, most).astype(int)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
