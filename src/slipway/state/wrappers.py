"""Module wrappers that prefix the names of tensors: DDP, DataParallel, torch.compile, Fabric."""

from __future__ import annotations

import functools

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from slipway.checkpoint.shards import is_sharded

SEGMENTS = {"module", "_orig_mod"}
"""Name segments that these wrappers add to tensor names."""


def wrapped_child(module: nn.Module | None) -> str | None:
    """Return the attribute name under which ``module`` holds its wrapped module; None if it is not a wrapper."""
    kind: type = type(module)
    child = _child_of(kind)
    return None if child == "_orig_mod" and (module is None or child not in module._modules) else child  # noqa: SLF001


@functools.cache
def _child_of(kind: type) -> str | None:
    if issubclass(kind, (DistributedDataParallel, DataParallel)):
        return "module"
    names = {each.__name__ for each in kind.__mro__}
    return "_orig_mod" if "OptimizedModule" in names else "_original_module" if "_FabricModule" in names else None


def is_kind(value: object, name: str) -> bool:
    """Return whether the class of ``value`` or a base class has this name; importing the class could take seconds."""
    return any(kind.__name__ == name for kind in type(value).__mro__)


def unwrap(model: nn.Module) -> nn.Module:
    """Return ``model`` without its outer wrappers; wrappers around submodules remain."""
    while child := wrapped_child(model):
        model = getattr(model, child)
    return model


def plain_name(root: nn.Module, name: str) -> str:
    """Return the name of a tensor or module of ``root`` without the segments that wrappers add at any level.

    Args:
        root: a module.
        name: dotted path from ``root``, including wrapper segments.
    """
    module: nn.Module | None = root
    kept = []
    for part in name.split("."):
        if part != wrapped_child(module):
            kept.append(part)
        inner = getattr(module, part, None)  # a ScriptModule's _modules is not a dictionary
        module = inner if isinstance(inner, nn.Module) else None
    return ".".join(kept)


def replicas_in(model: object) -> list[DistributedDataParallel]:
    """Return the DistributedDataParallel wrappers in ``model``, including ``model`` itself."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return [module for module in modules if isinstance(module, DistributedDataParallel)]


def averages_gradients(model: object) -> bool:
    """Return whether a part of ``model`` averages gradients over the ranks: DistributedDataParallel or fully_shard."""
    return bool(replicas_in(model)) or (isinstance(model, nn.Module) and any(map(is_sharded, model.parameters())))
