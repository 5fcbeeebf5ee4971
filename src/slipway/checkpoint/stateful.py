"""Capture and restore of a checkpoint's components: objects with torch's Stateful protocol.

Each component's tensors are saved to one safetensors file. The rest of its state (numbers, text, lists, and
dictionaries with any plain keys) is saved in the manifest, as a tree that refers to the tensors by name.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from slipway.base.errors import SessionError, SlipwayError
from slipway.checkpoint.format import Checkpoint, Tensors
from slipway.checkpoint.header import Header, from_manifest, to_manifest
from slipway.checkpoint.saved_tensors import SavedTensors, sharded_tensors
from slipway.checkpoint.shards import Box, Place, is_sharded, local_box, local_part, sharded_like, whole
from slipway.checkpoint.store import reading
from slipway.checkpoint.values import DICTIONARIES, SETS, WITH_OPTIONS, kind_of, make, obstacle, options_of
from slipway.dist.collectives import as_bytes, broadcast_json, raise_on_all_ranks
from slipway.dist.communicator import Communicator

PLAIN = {bool, int, float, str, type(None)}
NUMPY_KINDS = "biufc"
"""Kinds of numpy dtypes that can be saved: booleans and numbers. Arrays are small here: states of generators."""
Shape = tuple[list[int], str]
"""A tensor's shape and the name of its dtype."""
Shapes = Mapping[str, Mapping[str, Shape]]
"""Shapes and dtypes of tensors, by component and name."""
Like = Callable[[str], Tensor | None]
"""Returns, for the name of a saved tensor, the tensor of the component that has its layout; None if there is none."""
CHUNK = 1 << 26
"""Bytes per broadcast; the GPU holds this much in addition to the model."""


WITHOUT_TENSORS: Mapping[str, Any] = defaultdict(type(None))
"""Placeholder for the tensors of a state, if only its other contents are read."""

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
        if not hasattr(component, "layouts") and (
            sharded := [key for key, value in named.items() if is_sharded(value)]
        ):
            raise SessionError(
                "unsavable-state",
                f"{name}: {sharded[0]} is a DTensor, which a session saves only as part of a module or of an optimizer "
                "of torch.optim.",
            )
        if named:
            tensors[name] = named
        if tree is not None:
            trees[name] = tree
    return Checkpoint(tensors, header._replace(trees=trees))


def restore(
    components: Mapping[str, Stateful],
    found: Checkpoint | None,
    comm: Communicator,
    *,
    saved_rank: Callable[[Mapping[str, Any]], int | None] | None = None,
) -> Restored | None:
    """Load the checkpoint ``found`` into ``components``; all ranks must call this.

    Components receive tensors on the CPU and must copy each to its device, as ``load_state_dict`` of modules and
    optimizers does. A component with a method ``layouts`` receives DTensors, on the device of those that this method's
    result returns.
    If tensors are sharded now or were when saved, each rank reads its own part from disk; else rank 0 sends them.

    Args:
        components: newly created components, on each rank.
        found: on rank 0, the checkpoint, or None for a new run. Ignored on other ranks.
        comm: this rank's communicator.
        saved_rank: returns, from the checkpoint's facts, the rank whose own state this rank takes, if that rank's state
            differed from rank 0's; None if none. Default: the rank of the same number.

    Returns:
        On every rank, the header and the missing components; None for a new run.
    """
    on_disk = _on_disk(found, components) if found else None
    shared = broadcast_json(
        comm,
        found
        and {
            "manifest": to_manifest(found.header),
            "shapes": {} if on_disk and found.folder else _shapes(found.tensors),
            "disk": [str(on_disk.folder), on_disk.entry] if on_disk else None,
        },
    )
    if shared is None:
        return None
    header = from_manifest(shared["manifest"])
    own_rank = saved_rank(header.facts) if saved_rank else comm.world.rank
    sent = FromRoot(header, found.tensors if found else {}, shared["shapes"], comm)
    disk = None
    if shared["disk"]:
        folder, entry = shared["disk"]
        disk = FromDisk(header, SavedTensors(Path(folder), sharded_tensors(entry)))
    saved = {*sent.components, *(disk.components if disk else ()), *header.trees}
    own = sorted(saved & components.keys())
    by_root = [name for name in own if disk is None or name in sent.components]
    for name in by_root:
        _restore_one(name, components[name], sent, own_rank)
    if disk:
        failure = None
        try:
            with reading(disk.folder):
                for name in own:
                    if name not in by_root:
                        _restore_one(name, components[name], disk, own_rank)
        except Exception as error:  # noqa: BLE001 -- of this rank only: raised again on all ranks
            failure = error
        raise_on_all_ranks(comm, failure)
    return Restored(header, [name for name in components if name not in saved])


def _on_disk(found: Checkpoint, components: Mapping[str, Stateful]) -> SavedTensors | None:
    """Return the tensors that each rank reads from disk: none, the sharded ones, or all tensors of a checkpoint."""
    return found.on_disk if found.folder and (found.sharded or has_shards(components)) else found.sharded


def _restore_one(name: str, component: Stateful, source: Source, own_rank: int | None) -> None:
    """Load the state of a component in ``source``."""
    tree = source.header.trees.get(name)
    layouts = getattr(component, "layouts", None)
    like = layouts(join(WITHOUT_TENSORS, tree)) if layouts else _unsharded
    state = join(source.tensors(name, like), tree)
    own = _own(source, RANKS + name, own_rank)
    if own is not None:
        # For a module, only tensors that differ from rank 0's were saved per rank.
        state = {**state, **own} if restores_in_place(component) else own
    _load(name, component, state)


def _unsharded(_name: str) -> None:
    return None


def has_shards(components: Mapping[str, Stateful]) -> bool:
    """Return whether a component's state contains DTensors."""
    return any(getattr(component, "is_sharded", False) for component in components.values())


class Source(ABC):
    """A checkpoint from which all ranks restore."""

    def __init__(self, header: Header, components: Collection[str]) -> None:
        """Restore the state of ``header``; ``components`` are the names of those that have tensors."""
        self.header, self.components = header, components

    @abstractmethod
    def tensors(self, component: str, like: Like, prefix: str = "") -> dict[str, Tensor]:
        """Return the tensors of ``component`` whose names begin with ``prefix``; all ranks must call this."""


class FromRoot(Source):
    """A checkpoint whose tensors rank 0 has read and sends to the others."""

    def __init__(self, header: Header, tensors: Tensors, shapes: Shapes, comm: Communicator) -> None:
        """Send ``tensors``, which only rank 0 has, of the given shapes and dtypes."""
        super().__init__(header, shapes.keys())
        self._tensors, self._shapes, self._comm = tensors, shapes, comm

    def tensors(self, component: str, like: Like, prefix: str = "") -> dict[str, Tensor]:
        """Return the tensors of ``component`` whose names begin with ``prefix``; all ranks must call this."""
        shapes = {name: shape for name, shape in self._shapes.get(component, {}).items() if name.startswith(prefix)}
        received = _broadcast(self._comm, self._tensors.get(component), shapes)
        return {
            name: tensor if (target := _target(like, name, tensor.shape)) is None else _part_of(tensor, target)
            for name, tensor in received.items()
        }


class FromDisk(Source):
    """A checkpoint of which each rank reads the tensors, or parts of them, that it holds."""

    def __init__(self, header: Header, saved: SavedTensors) -> None:
        """Read the tensors in ``saved``, which rank 0 has verified."""
        super().__init__(header, saved.components)
        self._saved, self.folder = saved, saved.folder

    def tensors(self, component: str, like: Like, prefix: str = "") -> dict[str, Tensor]:
        """Return the tensors of ``component`` whose names begin with ``prefix``."""
        found = {}
        for name in self._saved.names(component):
            if name.startswith(prefix):
                place = component, name
                target = _target(like, name, self._saved.tensors[place].shape)
                found[name] = self._saved.read(place) if target is None else self._part(place, target)
        return found

    def _part(self, place: Place, target: Tensor) -> Tensor:
        dtype = self._saved.tensors[place].dtype
        return _placed(target, dtype, lambda box: self._saved.read(place, box))


def _target(like: Like, name: str, shape: Sequence[int]) -> Tensor | None:
    """Return the DTensor that has the layout of a saved tensor; None if the tensor is not sharded."""
    target = like(name)
    return None if target is None or not is_sharded(target) or tuple(target.shape) != tuple(shape) else target


def _part_of(tensor: Tensor, target: Tensor) -> Tensor:
    """Return a DTensor with the elements of ``tensor`` and the layout of the DTensor ``target``."""
    return _placed(target, tensor.dtype, lambda box: tensor[box.within(whole(tensor.shape))])


def _placed(target: Tensor, dtype: torch.dtype, read: Callable[[Box], Tensor]) -> Tensor:
    """Return a DTensor with the layout of the DTensor ``target``; ``read`` returns this rank's elements."""
    box = local_box(target)
    return sharded_like(target, read(box) if box else torch.empty(local_part(target).shape, dtype=dtype))


def _own(source: Source, name: str, own_rank: int | None) -> dict[Any, Any] | None:
    """Return this rank's state in the component ``name``; None if the state was the same as rank 0's."""
    own = None
    for rank, tree in source.header.trees[name]["dict"] if name in source.header.trees else []:
        received = source.tensors(name, _unsharded, f"{name}/{rank}/")
        if rank == own_rank:
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


def join(tensors: Mapping[str, Any], tree: Any) -> dict[Any, Any]:
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


def _state(tree: Any, tensors: Mapping[str, Any]) -> Any:
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
