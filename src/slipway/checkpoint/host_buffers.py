"""Host buffers into which tensors are copied for a save, allocated once."""

from __future__ import annotations

import contextlib
import ctypes

import torch
from torch import Tensor

from slipway.checkpoint.format import Tensors
from slipway.checkpoint.host_copies import HostCopies, Pair, Transfer


class HostBuffers:
    """One buffer for each tensor, of its shape and dtype; pinned for a tensor on a GPU."""

    def __init__(self) -> None:
        """Begin without buffers."""
        self.named: dict[tuple[str, str], Tensor] = {}
        """The buffers, by file and name."""
        self._host_copies = HostCopies()

    def copy(self, tensors: Tensors) -> tuple[Tensors, list[Transfer]]:
        """Return the buffers, which hold copies of ``tensors`` as soon as the returned transfers are over."""
        copies: Tensors = {}
        on_gpu: list[Pair] = []
        for file, named in tensors.items():
            copies[file] = {}
            for name, tensor in named.items():
                buffer = self._buffer(file, name, tensor)
                if tensor.is_cuda:
                    on_gpu.append((tensor.detach(), buffer))
                else:
                    buffer.copy_(tensor.detach())
                copies[file][name] = buffer
        return copies, self._host_copies.start(on_gpu)

    def allocate(self, tensors: Tensors, *, pinned: bool) -> None:
        """Allocate the pinned buffers for ``tensors``, or allocate the others and write to each of their pages."""
        with contextlib.suppress(RuntimeError):  # too little memory: the save will report it
            for file, named in tensors.items():
                for name, tensor in named.items():
                    if tensor.is_cuda == pinned:
                        buffer = self._buffer(file, name, tensor)
                        if not pinned:
                            # ctypes releases the GIL; zero_() would start OpenMP threads.
                            ctypes.memset(buffer.data_ptr(), 0, buffer.nbytes)

    def _buffer(self, file: str, name: str, tensor: Tensor) -> Tensor:
        """Return the host buffer for ``tensor``: the previous one if shape and dtype match, otherwise a new one."""
        buffer = self.named.get((file, name))
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
            self.named[file, name] = buffer
        return buffer
