"""What a checkpoint is taken of: objects with ``state_dict`` and ``load_state_dict``, torch's Stateful protocol.

Tensors go to a safetensors file for each component. Whatever else a state holds (numbers, text, lists, and dictionaries
with any plain keys) stands in the manifest, as a tree that refers to the tensors by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from slipway.checkpoint.folder import Checkpoint, Tensors
from slipway.checkpoint.header import Header, from_manifest, to_manifest
from slipway.communicator import Communicator
from slipway.communicator.collectives import broadcast_json

PLAIN = (bool, int, float, str, type(None))


class Stateful(Protocol):
    """A model, an optimiser, a scheduler: the protocol of torch.distributed.checkpoint.stateful."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state, whose tensors may be the object's own."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Take over a state."""
        ...


class Restored(NamedTuple):
    """What ``restore`` found."""

    header: Header
    missing: list[str]
    """Components that the checkpoint does not hold; they are as they were."""


def capture(components: Mapping[str, Stateful], header: Header) -> Checkpoint:
    """Return a checkpoint of ``components``, whose tensors still are the components' own.

    Raises:
        TypeError: if a state holds something that is neither a tensor nor plain.
    """
    tensors: Tensors = {}
    trees = {}
    for name, component in components.items():
        named, tree = split(component.state_dict(), name)
        if named:
            tensors[name] = named
        if tree is not None:
            trees[name] = tree
    return Checkpoint(tensors, header._replace(trees=trees))


def restore(components: Mapping[str, Stateful], found: Checkpoint | None, comm: Communicator) -> Restored | None:
    """Bring ``components`` to where ``found`` was captured; all ranks must call this.

    Args:
        components: freshly made, on each rank.
        found: on rank 0, the checkpoint, or None to begin anew. Ignored on other ranks.
        comm: of this rank.

    Returns:
        On every rank, what was found; None to begin anew.
    """
    shared = broadcast_json(comm, found and {"manifest": to_manifest(found.header), "shapes": _shapes(found.tensors)})
    if shared is None:
        return None
    header = from_manifest(shared["manifest"])
    tensors = _broadcast(comm, found.tensors if found else None, shared["shapes"])
    missing = []
    for name, component in components.items():
        if name in tensors or name in header.trees:
            component.load_state_dict(join(tensors.get(name, {}), header.trees.get(name)))
        else:
            missing.append(name)
    return Restored(header, missing)


def split(state: Mapping[Any, Any], component: str) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors of ``state`` by name, and the rest as a tree of JSON; None where it is tensors by name alone.

    Raises:
        TypeError: naming what cannot be saved, and where in ``component`` it stands.
    """
    if all(isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()):
        return {name: tensor.detach() for name, tensor in state.items()}, None
    tensors: dict[str, Tensor] = {}
    return tensors, _tree(state, component, tensors)


def join(tensors: Mapping[str, Tensor], tree: Any) -> dict[Any, Any]:
    """Return the state that ``split`` took apart."""
    state: dict[Any, Any] = dict(tensors) if tree is None else _state(tree, tensors)
    return state


def _tree(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Return ``value`` as JSON, in which only dictionaries and lists of their own kind are not plain."""
    match value:
        case Tensor():
            tensors[place] = value.detach()
            return {"tensor": place}
        case Mapping():
            for key in value:
                _require_plain(key, f"a key of {place}")
            return {"dict": [[key, _tree(item, f"{place}/{key!r}", tensors)] for key, item in value.items()]}
        case list() | tuple():
            items = [_tree(item, f"{place}/{number}", tensors) for number, item in enumerate(value)]
            return {type(value).__name__: items}
    return _require_plain(value, place)


def _require_plain(value: Any, place: str) -> Any:
    if not isinstance(value, PLAIN):
        raise TypeError(
            f"{place} is {type(value).__name__}: a checkpoint holds tensors, numbers, text, lists and dicts"
        )
    return value


def _state(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    match tree:
        case {"tensor": name}:
            return tensors[name]
        case {"dict": items}:
            return {key: _state(item, tensors) for key, item in items}
        case {"list": items}:
            return [_state(item, tensors) for item in items]
        case {"tuple": items}:
            return tuple(_state(item, tensors) for item in items)
    return tree


Shapes = dict[str, dict[str, tuple[list[int], str]]]


def _shapes(tensors: Tensors) -> Shapes:
    return {
        file: {name: (list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in named.items()}
        for file, named in tensors.items()
    }


def _broadcast(comm: Communicator, tensors: Tensors | None, shapes: Shapes) -> Tensors:
    """Return rank 0's ``tensors`` on every rank's device."""
    shared: Tensors = {
        file: {
            name: tensors[file][name].to(comm.device)
            if tensors
            else torch.empty(shape, dtype=getattr(torch, dtype), device=comm.device)
            for name, (shape, dtype) in named.items()
        }
        for file, named in shapes.items()
    }
    comm.broadcast([tensor for named in shared.values() for tensor in named.values()])
    return shared
