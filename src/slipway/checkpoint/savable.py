"""Which tensors a checkpoint can hold: dense ones of PyTorch's own class, of a dtype that safetensors stores."""

from __future__ import annotations

import functools

import torch
from safetensors.torch import save
from torch import Tensor, nn

CLASSES = (Tensor, nn.Parameter)
"""Of tensors that consist of their elements. Another class may hold more, and would come back as a plain tensor."""


def obstacle(tensor: Tensor, *, restored_in_place: bool = False) -> str:
    """Return why ``tensor`` cannot be saved, such as "has the layout torch.sparse_coo"; "" if it can.

    Args:
        tensor: of any device.
        restored_in_place: whether its elements are copied into a tensor of the same class, as those of modules are. A
            subclass that keeps its data in the usual storage can then be saved, an expanded tensor cannot.
    """
    kind = type(tensor)
    has_own_storage = kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
    if kind not in CLASSES and (has_own_storage or not restored_in_place):
        return f"is of the tensor subclass {kind.__name__}"
    if tensor.is_nested or tensor.layout != torch.strided:
        return "is a nested tensor" if tensor.is_nested else f"has the layout {tensor.layout}"
    if tensor.is_meta:
        return "is on the meta device, without data"
    if not _is_stored(tensor.dtype):
        return f"is of {tensor.dtype}"
    steps = zip(tensor.stride(), tensor.shape, strict=True)
    if restored_in_place and any(not step and size > 1 for step, size in steps):
        return "is expanded, and so cannot be written to"
    return ""


@functools.cache
def _is_stored(dtype: torch.dtype) -> bool:
    """Return whether the installed safetensors stores ``dtype``."""
    try:
        save({"tensor": torch.empty(2, dtype=dtype)})
    except Exception:  # noqa: BLE001 -- KeyError, and of quantized dtypes what torch raises
        return False
    return True
