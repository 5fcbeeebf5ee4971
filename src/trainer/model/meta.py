"""Passes of a model on the meta device, whose tensors have shapes but no data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


class OperatorCounter(TorchDispatchMode):
    """Counts the operators that are dispatched within this mode, except views, which launch nothing."""

    count = 0

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count and call ``func``."""
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def tensors_on_meta(model: nn.Module) -> dict[str, Tensor]:
    """Return a tensor without data for each parameter and buffer of ``model``, for torch.func.functional_call."""
    tensors = itertools.chain(model.named_parameters(), model.named_buffers())
    return {name: torch.empty_like(value, device="meta", requires_grad=value.requires_grad) for name, value in tensors}


def count_flop(model: nn.Module, shape: Sequence[int]) -> tuple[int, int]:
    """Return the FLOP and the operators (see OperatorCounter) of one forward and backward pass with cross-entropy.

    A multiply-add is 2 FLOP; only matrix products and convolutions are counted (torch.utils.flop_counter). The result
    is the same on every machine: the pass reads no data, uses no device and draws no random numbers.

    Args:
        model: classifier with float32 weights on any device, in training mode; not changed.
        shape: of its input: samples, channels, height, width.

    Raises:
        Exception: of any type, if the model cannot run on the meta device.
    """
    from torch.utils.flop_counter import FlopCounterMode, conv_flop_count  # noqa: PLC0415 -- only some runs count

    def conv_backward(gradient: list[int], images: list[int], weight: list[int], *rest: Any, **_: Any) -> int:
        # Each gradient costs as much as the forward pass. torch 2.13 multiplies the weight's by the number of groups.
        transposed, _padding, _groups, needed = rest[-4:]
        return sum(needed[:2]) * conv_flop_count(images, weight, gradient, transposed=transposed)

    formulas = {torch.ops.aten.convolution_backward: conv_backward}
    with torch.device("meta"):  # of all tensors, also of the random numbers of stochastic depth
        images, labels = torch.empty(*shape), torch.empty(shape[0], dtype=torch.int64)
        tensors = tensors_on_meta(model)
        with FlopCounterMode(display=False, custom_mapping=formulas) as flop, OperatorCounter() as operators:
            F.cross_entropy(torch.func.functional_call(model, tensors, (images,)), labels).backward()
    return flop.get_total_flops(), operators.count
