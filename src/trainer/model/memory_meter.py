"""Counting the memory of tensors as they come and go."""

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
    """Counts the bytes of the tensors made within it as long as they are alive, by the stage that made them."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        """Count all but ``known``, which are there before, and views of them; for stage 0 until ``at`` is called."""
        super().__init__()
        self._stage = 0
        self._known = [tensor.untyped_storage() for tensor in known]
        self._counted: dict[int, tuple[int, int]] = {}
        """Stage and bytes, by the identity of the storage."""
        self._counted |= {id(storage): (0, 0) for storage in self._known}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.live: dict[int, int] = defaultdict(int)
        """By stage."""
        self.peak: dict[int, int] = defaultdict(int)
        """The most that has been alive at once, by stage."""

    @contextmanager
    def at(self, stage: int) -> Iterator[None]:
        """Count for ``stage`` from now on."""
        self._stage = stage
        yield

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call ``func``, and count what it returns."""
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
        """Count ``tensor``, which was made within, no more, nor any other view of what it holds."""
        key = id(tensor.untyped_storage())
        stage, size = self._counted[key]
        self._counted[key] = (stage, 0)
        self.live[stage] -= size
