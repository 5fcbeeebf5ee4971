"""Capture and restore of a checkpoint's components: objects with torch's Stateful protocol.

Each component's tensors are saved to one safetensors file. The rest of its state (numbers, text, lists, and
dictionaries with any plain keys) is saved in the manifest, as a tree that refers to the tensors by name.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from slipway.base.errors import SessionError, SlipwayError
from slipway.checkpoint.format import Checkpoint, Tensors
from slipway.checkpoint.header import Header, from_manifest, to_manifest
from slipway.checkpoint.values import DICTIONARIES, SETS, WITH_OPTIONS, kind_of, make, obstacle, options_of
from slipway.dist.collectives import as_bytes, broadcast_json
from slipway.dist.communicator import Communicator

PLAIN = {bool, int, float, str, type(None)}
NUMPY_KINDS = "biufc"
"""Kinds of numpy dtypes that can be saved: booleans and numbers. Arrays are small here: states of generators."""
Shape = tuple[list[int], str]
"""A tensor's shape and the name of its dtype."""
CHUNK = 1 << 26
"""Bytes per broadcast; the GPU holds this much in addition to the model."""


RANKS = "ranks."
"""Prefix of a checkpoint's components that hold the states of those ranks whose state differs from rank 0's."""


class Stateful(Protocol):
    """Protocol of torch.distributed.checkpoint.stateful: a model, an optimizer, a learning rate scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state; its tensors may share the object's storage."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Load a state."""
        ...


class Restored(NamedTuple):
    """Result of ``restore``."""

    header: Header
    missing: list[str]
    """Components that the checkpoint does not hold; they are unchanged."""


def capture(components: Mapping[str, Stateful], header: Header) -> Checkpoint:
    """Return a checkpoint of ``components``; its tensors share the components' storage.

    Raises:
        SessionError: naming a value in a state that a checkpoint cannot hold.
    """
    tensors: Tensors = {}
    trees = {}
    for name, component in components.items():
        named, tree = split(state_of(name, component), name, restored_in_place=restores_in_place(component))
        if named:
            tensors[name] = named
        if tree is not None:
            trees[name] = tree
    return Checkpoint(tensors, header._replace(trees=trees))


def restore(components: Mapping[str, Stateful], found: Checkpoint | None, comm: Communicator) -> Restored | None:
    """Load the checkpoint ``found`` into ``components``; all ranks must call this.

    Components receive tensors on the CPU and must copy each to its device, as ``load_state_dict`` of modules and
    optimizers does.

    Args:
        components: newly created components, on each rank.
        found: on rank 0, the checkpoint, or None for a new run. Ignored on other ranks.
        comm: this rank's communicator.

    Returns:
        On every rank, the header and the missing components; None for a new run.
    """
    shared = broadcast_json(comm, found and {"manifest": to_manifest(found.header), "shapes": _shapes(found.tensors)})
    if shared is None:
        return None
    header, shapes = from_manifest(shared["manifest"]), shared["shapes"]
    saved = {*shapes, *header.trees}
    tensors = found.tensors if found else {}
    for name in sorted(saved & components.keys()):
        state = join(_broadcast(comm, tensors.get(name), shapes.get(name, {})), header.trees.get(name))
        own = _own(comm, RANKS + name, tensors, shapes, header.trees)
        if own is not None:
            # For a module, only tensors that differ from rank 0's were saved per rank.
            state = {**state, **own} if restores_in_place(components[name]) else own
        _load(name, components[name], state)
    return Restored(header, [name for name in components if name not in saved])


def _own(
    comm: Communicator, name: str, tensors: Tensors, shapes: Mapping[str, Mapping[str, Shape]], trees: Mapping[str, Any]
) -> dict[Any, Any] | None:
    """Return this rank's state in the component ``name``; None if the state was the same as rank 0's."""
    own = None
    for rank, tree in trees[name]["dict"] if name in trees else []:
        of_rank = {place: shape for place, shape in shapes.get(name, {}).items() if place.startswith(f"{name}/{rank}/")}
        received = _broadcast(comm, tensors.get(name), of_rank)
        if rank == comm.world.rank:
            own = join(received, tree)
    return own


def restores_in_place(component: Stateful) -> bool:
    """Return whether ``component`` copies a state into its existing tensors, as modules do."""
    return isinstance(component, nn.Module) or getattr(component, "restores_in_place", False)


def load_module(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a checkpoint's ``state`` into ``module``, with the metadata of layer versions that some modules require."""
    versioned = OrderedDict(state)
    versioned._metadata = module.state_dict()._metadata  # type: ignore[attr-defined] # noqa: SLF001 -- torch's
    module.load_state_dict(versioned)


def state_of(name: str, component: Stateful) -> dict[str, Any]:
    """Return the component's state.

    Raises:
        SessionError: with its ``name``, if ``state_dict`` fails.
    """
    try:
        return component.state_dict()
    except SlipwayError:
        raise
    except Exception as error:  # whatever a component's code raises
        reason = f"{type(error).__name__}: {error}"
        raise SessionError("unsavable-state", f"state_dict of {name} fails: {reason}") from error


def _load(name: str, component: Stateful, state: dict[str, Any]) -> None:
    try:
        if isinstance(component, nn.Module):
            load_module(component, state)
        else:
            component.load_state_dict(state)
    except SlipwayError:
        raise
    except Exception as error:  # whatever a component's code raises
        reason = f"{type(error).__name__}: {error}"
        raise SessionError("different-state", f"{name} cannot load its saved state: {reason}") from error


def split(
    state: Mapping[Any, Any], component: str, *, restored_in_place: bool = False
) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors of ``state`` by name, and the rest as a JSON tree; None if the state is a dict of tensors.

    Args:
        state: a component's state.
        component: the component's name.
        restored_in_place: whether loading copies into tensors of the same classes, as modules do.

    Raises:
        SessionError: naming a value that cannot be saved, and its place in ``component``.
    """
    tensors: dict[str, Tensor] = {}
    if state and all(isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()):
        tree, tensors = None, dict(state)
    else:
        tree = _tree(dict(state), component, tensors)
    for name, tensor in tensors.items():
        if fault := obstacle(tensor, restored_in_place=restored_in_place):
            place = f"{component}: {name}" if tree is None else name
            raise SessionError("unsavable-state", f"{place} {fault}, which a checkpoint cannot hold.")
    return {name: tensor.detach() for name, tensor in tensors.items()}, tree


def join(tensors: Mapping[str, Tensor], tree: Any) -> dict[Any, Any]:
    """Return the state that ``split`` split into ``tensors`` and ``tree``."""
    state: dict[Any, Any] = dict(tensors) if tree is None else _state(tree, tensors)
    return state


def _tree(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Encode ``value`` as JSON and collect its tensors; containers and tensors become objects keyed by their kind."""
    if isinstance(value, Tensor):
        tensors[place] = value
        return {"tensor": place}
    if type(value) is bytes:
        return {"bytes": value.hex()}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in NUMPY_KINDS:
        return {
            "numpy": [value.dtype.str, None if isinstance(value, np.generic) else value.shape, value.tobytes().hex()]
        }
    if type(value) in PLAIN:
        return value
    kind = kind_of(value)
    if kind is None:
        return _require_plain(value, place)
    items: list[Any]
    if isinstance(value, dict):
        for key in value:
            _require_plain(key, f"a key of {place}")
        items = [[key, _tree(item, f"{place}/{key!r}", tensors)] for key, item in value.items()]
    elif isinstance(value, SETS):  # sorted, so that the order is the same on all ranks
        items = sorted((_element(item, f"an element of {place}") for item in value), key=json.dumps)
    else:
        items = [_tree(item, f"{place}/{number}", tensors) for number, item in enumerate(value)]
    options = options_of(value)
    return {kind: [items, *options] if options else items}


def _element(value: Any, place: str) -> Any:
    """Encode an element of a set; tensors are refused, because the set compares them by identity."""
    tensors: dict[str, Tensor] = {}
    tree = _tree(value, place, tensors)
    for tensor in tensors.values():
        _require_plain(tensor, place)
    return tree


def _require_plain(value: Any, place: str) -> Any:
    if type(value) not in PLAIN:
        raise SessionError(
            "unsavable-state",
            f"{place} is of {type(value).__name__}: a checkpoint holds tensors, numbers, text, bytes, arrays, and "
            "lists, tuples, sets and dictionaries of these.",
        )
    return value


def _state(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, content),) = tree.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "numpy":
        dtype, shape, data = content
        array = np.frombuffer(bytes.fromhex(data), dtype)
        return array[0] if shape is None else array.reshape(shape).copy()
    items, *options = content if kind in WITH_OPTIONS else (content,)
    if kind in DICTIONARIES:
        return make(kind, [(key, _state(item, tensors)) for key, item in items], *options)
    return make(kind, [_state(item, tensors) for item in items], *options)


def _shapes(tensors: Tensors) -> dict[str, dict[str, Shape]]:
    return {
        file: {name: (list(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in named.items()}
        for file, named in tensors.items()
    }


def _broadcast(
    comm: Communicator, tensors: Mapping[str, Tensor] | None, shapes: Mapping[str, Shape]
) -> dict[str, Tensor]:
    """Return rank 0's ``tensors``, of the given ``shapes`` and dtypes, on every rank's CPU.

    They are broadcast as bytes, because libraries cannot broadcast some dtypes. Rank 0 returns copies, because its own
    tensors are mapped from a file that would stay open.
    """
    received = {
        name: tensors[name].to("cpu", copy=True) if tensors else torch.empty(shape, dtype=getattr(torch, dtype))
        for name, (shape, dtype) in shapes.items()
    }
    batch: list[Tensor] = []
    size = 0
    for piece in (piece for tensor in received.values() for piece in as_bytes(tensor).split(CHUNK)):
        if size + len(piece) > CHUNK:
            _send(comm, batch)
            batch, size = [], 0
        batch.append(piece)
        size += len(piece)
    _send(comm, batch)
    return received


def _send(comm: Communicator, pieces: list[Tensor]) -> None:
    """Overwrite ``pieces``, tensors on the CPU, with rank 0's."""
    sent = [piece.to(comm.device) for piece in pieces]
    comm.broadcast(sent)
    for piece, from_root in zip(pieces, sent, strict=True):
        if from_root is not piece:
            piece.copy_(from_root)
