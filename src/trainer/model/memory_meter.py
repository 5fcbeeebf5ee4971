"""Meter of live tensor memory, by pipeline stage."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Meter(TorchDispatchMode):
    """Counts the bytes of live tensors created within this mode, by the stage that created them."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        """Exclude the existing tensors ``known`` and their views; count for stage 0 until ``at`` is called."""
        super().__init__()
        self._stage = 0
        self._known = [tensor.untyped_storage() for tensor in known]
        self._counted: dict[int, tuple[int, int]] = {}
        """Stage and bytes, by the storage's id."""
        self._counted |= {id(storage): (0, 0) for storage in self._known}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.live: dict[int, int] = defaultdict(int)
        """Bytes alive now, by stage."""
        self.peak: dict[int, int] = defaultdict(int)
        """Maximum of ``live``, by stage."""

    @contextmanager
    def at(self, stage: int) -> Iterator[None]:
        """Count for ``stage`` from now on."""
        self._stage = stage
        yield

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func`` and count the tensors that it returns."""
        found = func(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            if isinstance(value, Tensor):
                self._count(value.untyped_storage())
        return found

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = id(storage)
        if key in self._counted:
            return
        self._references[key] = weakref.ref(storage, lambda _reference: self._free(key))
        self._counted[key] = (self._stage, storage.nbytes())
        self.live[self._stage] += storage.nbytes()
        self.peak[self._stage] = max(self.peak[self._stage], self.live[self._stage])

    def _free(self, key: int) -> None:
        stage, size = self._counted.pop(key)
        self.live[stage] -= size
        del self._references[key]

    def forget(self, tensor: Tensor) -> None:
        """Stop counting the storage of ``tensor``, which was created within this mode."""
        key = id(tensor.untyped_storage())
        stage, size = self._counted[key]
        self._counted[key] = (stage, 0)
        self.live[stage] -= size
