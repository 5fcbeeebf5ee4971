"""Memory for the tensors of a sharded model that was built on the meta device, before a state is loaded into it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from slipway.base.errors import SessionError
from slipway.checkpoint.shards import is_sharded
from slipway.dist.data_ranks import fsdp_groups


def has_meta_tensors(module: nn.Module) -> bool:
    """Return whether a parameter or buffer of ``module`` is on the meta device."""
    return any(tensor.is_meta for _, tensor in _tensors(module))


def materialize(name: str, module: nn.Module) -> None:
    """Give the meta tensors of ``module`` memory on the device of its mesh, without values.

    The parameters stay the same objects, which an optimizer holds.

    Args:
        name: the model's name, for errors.
        module: a module, sharded by ``fully_shard`` or tensor parallelism.

    Raises:
        SessionError: if the module is not sharded, so that its device is unknown, or if a buffer is on the meta device
            that no state_dict holds.
    """
    parameters: list[Any] = [tensor for tensor in module.parameters() if is_sharded(tensor)]
    if not parameters:
        first = next(path for path, tensor in _tensors(module) if tensor.is_meta)
        raise SessionError("meta-tensors", f"{name}: {first} is on the meta device, and the model is not sharded.")
    if lost := [*_unsaved_buffers(module)]:
        raise SessionError(
            "meta-tensors",
            f"{name}: the buffer {lost[0]} is on the meta device, and no file holds it (persistent=False).",
        )
    device = torch.device("cpu" if _is_offloaded(module) else parameters[0].device_mesh.device_type)

    def filled(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.detach()

    with _swapped_parameters():
        module._apply(filled)  # noqa: SLF001 -- ``to_empty`` does the same to all tensors


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _unsaved_buffers(root: nn.Module) -> Iterator[str]:
    for path, module in root.named_modules():
        for name in sorted(module._non_persistent_buffers_set):  # noqa: SLF001
            buffer = module._buffers.get(name)  # noqa: SLF001
            if buffer is not None and buffer.is_meta:
                yield f"{path}.{name}" if path else name


def _is_offloaded(module: nn.Module) -> bool:
    """Return whether ``fully_shard`` keeps the parameters in host memory (CPUOffloadPolicy)."""
    groups = [group for part in module.modules() for group in fsdp_groups(part)]
    return any(parameter.offload_to_cpu for group in groups for parameter in group.fsdp_params)


@contextlib.contextmanager
def _swapped_parameters() -> Iterator[None]:
    """Let conversions of modules keep the objects of their parameters."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
