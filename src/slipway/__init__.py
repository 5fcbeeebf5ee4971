"""What makes a training run safe to stop, resume and requeue. Importing the package loads no torch.

Public are ``Session``, ``Sampler``, ``peek``, ``Stopped`` and ``SessionError`` (docs/session.md), ``PackedImages``
(docs/data.md), and ``slipway.lightning.SlipwayCallback`` (docs/frameworks.md); the rest serves them, the trainer and
jobgen, and may change with each version.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipway.base.errors import SessionError as SessionError
    from slipway.data.packed import PackedImages as PackedImages
    from slipway.data.sampler import Sampler as Sampler
    from slipway.run.run import Stopped as Stopped
    from slipway.script.peeking import peek as peek
    from slipway.session import Session as Session

HOME = {
    "PackedImages": "data.packed",
    "Sampler": "data.sampler",
    "Session": "session",
    "SessionError": "base.errors",
    "Stopped": "run.run",
    "peek": "script.peeking",
}
"""The modules of the public names, most of which load torch."""

__all__ = ["PackedImages", "Sampler", "Session", "SessionError", "Stopped", "peek"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in HOME:
        raise AttributeError(f"module 'slipway' has no attribute {name!r}")
    return getattr(importlib.import_module(f"slipway.{HOME[name]}"), name)
