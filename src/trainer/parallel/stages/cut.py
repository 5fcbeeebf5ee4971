"""Cutting a model into stages, by tracing it (torch.fx): its modules and their names stay what they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import fx, nn

from trainer.config.errors import ConfigError, did_you_mean
from trainer.config.plugin import reason_of

RANDOM = {"dropout1d", "dropout2d", "dropout3d", "stochastic_depth", "gumbel_softmax", "drop_block2d", "drop_block3d"}
"""Functions that draw random numbers, besides torch's own operators, which say so themselves."""
SHOWN = 12
"""Places that an error names where one can cut, at most."""


def cut(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Return the stages of ``model``: the first up to the submodule ``names[0]``, the next from there on, and so on.

    The stages call the very modules of ``model``, and share its parameters.

    Args:
        model: maps one tensor to one tensor.
        names: of submodules, as ``named_modules`` gives them, in the order in which they are called.

    Raises:
        ConfigError: naming what is in the way, and where one can cut instead.
    """
    modules = dict(model.named_modules())
    for name in names:
        if not name or name not in modules:
            hint = did_you_mean(name, list(modules)[1:])
            raise ConfigError("bad-split", f"--split {','.join(names)}: the model has no submodule {name!r}.{hint}")
    if not names:
        return [model]
    nodes = _trace(model, opened=_ancestors(names), option=f"--split {','.join(names)}")
    begins = [_begin_of(nodes, name) for name in names]
    inputs = next(place for place, node in enumerate(nodes) if node.op not in {"placeholder", "get_attr"})
    for (first, before), (second, behind) in pairwise(zip(["", *names], [inputs, *begins], strict=True)):
        if before == behind:
            raise ConfigError(
                "bad-split", f"--split {','.join(names)}: there is nothing before {second} for a stage of its own."
            )
        if before > behind:
            raise ConfigError("bad-split", f"--split {first},{second}: the model calls {second} first.")
    for name, begin in zip(names, begins, strict=True):
        _require_one_edge(model, nodes, name, begin)
    _refuse_draws(nodes, names)
    bounds = [0, *begins, len(nodes)]
    stages: list[nn.Module] = [_stage(model, nodes, begin, end) for begin, end in pairwise(bounds)]
    _require_own_parameters(stages)
    return stages


def places(model: nn.Module) -> list[str]:
    """Return the submodules before which ``model`` can be cut, in the order of their calls.

    Looked into are the model itself and the containers in it that only call one child after the other.

    Raises:
        ConfigError: if the model cannot be traced.
    """
    containers = {name for name, module in model.named_modules() if name and isinstance(module, nn.Sequential)}
    nodes = _trace(model, opened=containers | _ancestors(containers), option="--split auto")
    return [_outermost(nodes, name) for name in _possible(nodes)[1:]]  # before the first one there is nothing


def _outermost(nodes: list[fx.Node], name: str) -> str:
    """Return the outermost module whose first call is that of the module ``name`` in it."""
    around = sorted(_ancestors([name]), key=len)
    return next(other for other in [*around, name] if nodes[_calls_in(nodes, other)[0]].target == name)


def _ancestors(names: Iterable[str]) -> set[str]:
    """Return the modules that modules of these ``names`` are in."""
    return {name[:place] for name in names for place, character in enumerate(name) if character == "."}


def _calls_in(nodes: list[fx.Node], name: str) -> list[int]:
    """Return the places of the calls of the module ``name``, or of those in it where the graph looks into it."""
    return [
        place
        for place, node in enumerate(nodes)
        if node.op == "call_module" and f"{node.target}.".startswith(f"{name}.")
    ]


def _possible(nodes: list[fx.Node]) -> list[str]:
    """Return the modules of a graph that are called once, and before which one tensor alone crosses a cut."""
    return [
        str(node.target)
        for place, node in enumerate(nodes)
        if node.op == "call_module"
        and len(_crossing(nodes, place)) == 1
        and [other.target for other in nodes].count(node.target) == 1
    ]


class _Tracer(fx.Tracer):
    """Looks into the modules around the cuts, and takes every other one for a whole."""

    def __init__(self, opened: set[str]) -> None:
        super().__init__()
        self._opened = opened

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 -- torch's names
        return module_qualified_name not in self._opened


def _trace(model: nn.Module, *, opened: set[str], option: str) -> list[fx.Node]:
    """Return the calls of ``model``, and of the modules ``opened`` in it, one after the other."""
    try:
        return list(_Tracer(opened).trace(model).nodes)
    except Exception as error:  # a forward of somebody else's may do anything with what is no tensor
        outer = [name for name, _ in model.named_children()]
        raise ConfigError(
            "bad-split",
            f"{option}: the model cannot be traced: {reason_of(error)} "
            f"Cut before a module whose parents only pass tensors on: {_some(outer)}.",
        ) from error


def _begin_of(nodes: list[fx.Node], name: str) -> int:
    """Return the place of the call of the submodule ``name``."""
    inside = _calls_in(nodes, name)
    calls = [place for place in inside if nodes[place].target == nodes[inside[0]].target]
    if len(calls) != 1:
        found = f"calls it {len(calls)} times" if calls else "never calls it"
        raise ConfigError(
            "bad-split", f"--split {name}: the model {found}; a stage begins where a module is called once."
        )
    return calls[0]


def _crossing(nodes: list[fx.Node], begin: int) -> list[fx.Node]:
    """Return the nodes before ``begin`` whose values are used from there on."""
    behind = set(nodes[begin:])
    return [node for node in nodes[:begin] if node.op != "get_attr" and behind.intersection(node.users)]


def _require_one_edge(model: nn.Module, nodes: list[fx.Node], name: str, begin: int) -> None:
    crossing = _crossing(nodes, begin)
    if len(crossing) == 1:
        return
    values = " and ".join(str(node.target) for node in crossing) or "nothing"
    raise ConfigError(
        "bad-split",
        f"--split {name}: the results of {values} would cross the cut, and one tensor may. In "
        f"{type(model).__name__} one can cut before {_some(_possible(nodes))}.",
    )


def _refuse_draws(nodes: list[fx.Node], names: Sequence[str]) -> None:
    """Refuse random numbers between modules, which nobody could seed alike for the whole model and for its stages."""
    for node in nodes:
        called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in {"call_function", "call_method"} and _draws(called):
            raise ConfigError(
                "bad-split",
                f"--split {','.join(names)}: the model calls {called} between its modules, which would draw other "
                "numbers than in the whole model: make it a module (nn.Dropout).",
            )


def _draws(name: str) -> bool:
    """Return whether a function or method of this ``name`` draws random numbers."""
    operator = getattr(torch.ops.aten, name, None)
    overloads = [getattr(operator, overload) for overload in operator.overloads()] if operator else []
    return name in RANDOM or any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def _stage(model: nn.Module, nodes: list[fx.Node], begin: int, end: int) -> fx.GraphModule:
    """Return the nodes from ``begin`` to ``end`` as a module of one tensor."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    if begin:
        (entering,) = _crossing(nodes, begin)
        copies[entering] = graph.placeholder("entering")

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:  # a parameter of the model itself, read where it is used
            copies[node] = graph.node_copy(node, copied)
        return copies[node]

    for node in nodes[begin:end]:
        if node.op != "get_attr":
            copied(node)
    if end < len(nodes):
        (leaving,) = _crossing(nodes, end)
        graph.output(copied(leaving))
    return fx.GraphModule(model, graph)


def _require_own_parameters(stages: Sequence[nn.Module]) -> None:
    owners: dict[int, tuple[int, str]] = {}
    for number, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            owner, other = owners.setdefault(id(parameter), (number, name))
            if owner != number:
                raise ConfigError(
                    "bad-split",
                    f"--split: stages {owner + 1} and {number + 1} share a parameter ({other}, {name}), which can be "
                    "on one device alone: cut elsewhere.",
                )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown}, and {len(names) - SHOWN} more" if len(names) > SHOWN else shown or "no module"
