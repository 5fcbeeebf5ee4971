"""Data-parallel coordinate of each rank: ranks with the same coordinate compute one model together, on the same samples."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from slipway.base.environment import World
from slipway.base.errors import SessionError
from slipway.dist.collectives import all_gather_json
from slipway.dist.communicator import Communicator

MAX_NAMED = 3
"""Maximum number of tensors that a message names."""


class DataRanks(NamedTuple):
    """Coordinates of all ranks. Without tensor parallelism, a rank's coordinate is its number."""

    world: World
    """This rank's coordinate as its rank, and the number of coordinates as the size."""
    coordinates: Sequence[int]
    """By rank."""

    @property
    def facts(self) -> dict[str, Any]:
        """Facts of a checkpoint from which ``saved_rank`` finds the ranks' coordinates."""
        plain = [*self.coordinates] == [*range(len(self.coordinates))]
        return {"world_size": len(self.coordinates), **({} if plain else {"coordinates": [*self.coordinates]})}

    def same(self, facts: Mapping[str, Any]) -> bool:
        """Return whether a run with these ``facts`` was saved by ranks with the same coordinates."""
        return saved_coordinates(facts) == [*self.coordinates]

    def saved_rank(self, facts: Mapping[str, Any], rank: int) -> int | None:
        """Return the rank of a saved run whose own state ``rank`` continues; None if that run had no such rank."""
        if self.same(facts):
            return rank
        saved, coordinate = saved_coordinates(facts), self.coordinates[rank]
        return saved.index(coordinate) if coordinate in saved else None

    def firsts(self, values: Sequence[Any]) -> list[Any]:
        """Return, of the ``values`` of all ranks, that of the first rank with each coordinate."""
        return [values[self.coordinates.index(coordinate)] for coordinate in range(self.world.size)]


def saved_coordinates(facts: Mapping[str, Any]) -> list[int]:
    """Return the coordinates of the ranks that saved a run with these ``facts``."""
    found: list[int] = facts.get("coordinates", [*range(facts["world_size"])])
    return found


def find_data_ranks(modules: Iterable[nn.Module], comm: Communicator) -> DataRanks:
    """Return the data-parallel coordinates of the ranks that train ``modules``; all ranks must call this.

    The coordinate is the rank's place in the mesh that was passed to ``fully_shard``. For DTensors without
    ``fully_shard``, all ranks in a tensor's mesh have the same coordinate.

    Raises:
        SessionError: on every rank, if the models are not sharded alike on all ranks, if nothing averages the gradients
            of a parameter, or if the meshes do not divide the ranks into equal groups.
    """
    modules = [*modules]
    _require_same_layout(modules, comm)
    own = max((_mesh_of_fsdp(part) for module in modules for part in module.modules()), key=len, default=[])
    together = max((_mesh_of(tensor) for module in modules for tensor in module.parameters()), key=len, default=[])
    gathered = all_gather_json(comm, [own, together])
    data, models = map(list, zip(*gathered, strict=True))
    ranks = range(comm.world.size)
    if any(data):
        coordinates = [mesh.index(rank) if rank in mesh else -1 for rank, mesh in enumerate(data)]
        size = len(data[0])
    elif any(models):
        meshes = sorted({tuple(mesh) for mesh in models})
        coordinates, size = [meshes.index(tuple(mesh)) for mesh in models], len(meshes)
    else:
        return DataRanks(comm.world, ranks)
    counts = Counter(coordinates)
    if sorted(counts) != [*range(size)] or len({*counts.values()}) > 1:
        error = SessionError(
            "sharded-model",
            f"the meshes of the model do not divide the {len(ranks)} ranks into equal groups: their coordinates are "
            f"{', '.join(map(str, coordinates))}.",
        )
        error.raised_on_all_ranks = True
        raise error
    return DataRanks(comm.world._replace(rank=coordinates[comm.world.rank], size=size), coordinates)


def _require_same_layout(modules: Sequence[nn.Module], comm: Communicator) -> None:
    """Raise a SessionError on every rank, if the ranks shard other tensors, or in another way: they would deadlock."""
    layout = [entry for number, module in enumerate(modules) for entry in _layout(number, module)]
    is_sharded = any(how for _, _, how in layout)
    digest = hashlib.sha256(json.dumps(layout).encode()).hexdigest()
    gathered = all_gather_json(comm, [is_sharded, digest])
    if not any(of_rank for of_rank, _ in gathered):
        return
    fault = ""
    if len({digest for _, digest in gathered}) > 1:
        rank, first, other = _first_difference(all_gather_json(comm, layout))
        fault = f"a model is sharded otherwise on rank {rank} than on rank 0: {other}, not {first}."
    elif comm.world.size > 1 and (names := [name for module in modules for name in _without_average(module)]):
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        fault = (
            f"{', '.join(names[:MAX_NAMED])}{more}: each rank would train its own copy, because fully_shard was called "
            "only for other parts of the model. Call fully_shard(model) after that for its blocks, before the "
            "optimizer is created."
        )
    if fault:
        error = SessionError("sharded-model", fault)
        error.raised_on_all_ranks = True
        raise error


def _first_difference(layouts: Sequence[list[list[str]]]) -> tuple[int, str, str]:
    """Return the first rank whose layout is not that of rank 0, and the first entry of each that differs, as text."""
    rank = next(rank for rank, other in enumerate(layouts) if other != layouts[0])
    pairs = itertools.zip_longest(layouts[0], layouts[rank], fillvalue=["nothing"])
    first, other = next((one, two) for one, two in pairs if one != two)
    return rank, " ".join(first), " ".join(other)


def _layout(number: int, module: nn.Module) -> list[list[str]]:
    """Return, for each parameter and each part with ``fully_shard``: name, shape and dtype, and how it is sharded."""
    found = [
        [f"{number} {name}", "" if is_lazy(value) else f"{value.dtype} {[*value.shape]}", _sharding(value)]
        for name, value in module.named_parameters()
    ]
    for name, part in module.named_modules():
        for group in fsdp_groups(part):
            shape = [*group.mesh_info.mesh.mesh.shape]
            found.append([f"{number} {name}", f"{len(group.fsdp_params)} parameters", f"fully_shard over {shape}"])
    return found


def _sharding(tensor: Any) -> str:
    """Return a DTensor's placements and the shape of its mesh, as text; "" for another tensor."""
    return f"{tensor.placements} over {[*tensor.device_mesh.mesh.shape]}" if hasattr(tensor, "device_mesh") else ""


def _without_average(module: nn.Module) -> list[str]:
    """Return the trained parameters outside of the parts with ``fully_shard``, which are whole on each rank.

    Those within are ``ignored_params`` of ``fully_shard``, whose gradients the script reduces.
    """
    parts = [part for part in module.modules() if hasattr(part, "_get_fsdp_state")]
    within = {id(parameter) for part in parts for parameter in part.parameters()}
    return [
        name
        for name, value in module.named_parameters()
        if parts and value.requires_grad and not hasattr(value, "device_mesh") and id(value) not in within
    ]


def fsdp_groups(module: nn.Module) -> list[Any]:
    """Return the parameter groups that ``fully_shard`` has made of ``module``; [] if it was not called with it."""
    state: Any = getattr(module, "_get_fsdp_state", lambda: None)()
    if hasattr(state, "_fsdp_param_groups"):
        return [*state._fsdp_param_groups]  # noqa: SLF001 -- torch offers nothing public
    group = getattr(state, "_fsdp_param_group", None)  # before torch 2.12
    return [] if group is None else [group]


def _mesh_of_fsdp(module: nn.Module) -> list[int]:
    """Return the ranks of the mesh on which ``fully_shard`` shards and replicates ``module``; [] if it does not."""
    return max((_ranks(group.mesh_info.mesh) for group in fsdp_groups(module)), key=len, default=[])


def _mesh_of(tensor: Any) -> list[int]:
    return _ranks(tensor.device_mesh) if hasattr(tensor, "device_mesh") else []


def _ranks(mesh: Any) -> list[int]:
    found: list[int] = mesh.mesh.flatten().tolist()
    return found
