"""Training runs that stop, resume and requeue safely. Importing this package does not import torch.

The public API is ``Session``, ``Sampler``, ``peek``, ``Stopped`` and ``SessionError`` (docs/howto/session.md),
``clip_grad_norm_`` (docs/howto/fsdp.md), ``PackedImages`` (docs/howto/packed-data.md), and
``slipway.lightning.SlipwayCallback`` (docs/howto/frameworks.md). All other modules are internal to these, the trainer
and jobgen, and may change with each version.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slipway.base.errors import SessionError as SessionError
    from slipway.data.packed import PackedImages as PackedImages
    from slipway.data.sampler import Sampler as Sampler
    from slipway.run.program import Stopped as Stopped
    from slipway.script.peek import peek as peek
    from slipway.session import Session as Session
    from slipway.state.clipping import clip_grad_norm_ as clip_grad_norm_

HOME = {
    "PackedImages": "data.packed",
    "Sampler": "data.sampler",
    "Session": "session",
    "SessionError": "base.errors",
    "Stopped": "run.program",
    "clip_grad_norm_": "state.clipping",
    "peek": "script.peek",
}
"""Module of each public name. Most of these modules import torch."""

__all__ = ["PackedImages", "Sampler", "Session", "SessionError", "Stopped", "clip_grad_norm_", "peek"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in HOME:
        raise AttributeError(f"module 'slipway' has no attribute {name!r}")
    return getattr(importlib.import_module(f"slipway.{HOME[name]}"), name)
