"""Cuts a model into pipeline stages by tracing it (torch.fx); its modules and their names do not change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import fx, nn

from slipway.base.errors import did_you_mean
from trainer.config.errors import ConfigError
from trainer.config.plugin import reason_of

RANDOM = {"dropout1d", "dropout2d", "dropout3d", "stochastic_depth", "gumbel_softmax", "drop_block2d", "drop_block3d"}
"""Functions that draw random numbers, besides torch's own operators, which have a tag for that."""
SHOWN = 12
"""Most places to cut that an error lists."""


def cut(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Return the stages of ``model``: the first ends before the submodule ``names[0]``, the next begins with it, etc.

    The stages call the modules of ``model`` itself, and share its parameters.

    Args:
        model: maps one tensor to one tensor.
        names: submodules, as in ``named_modules``, in the order of their calls.

    Raises:
        ConfigError: if the model cannot be cut there. The message has the reason, and where possible other places.
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
            raise ConfigError("bad-split", f"--split {','.join(names)}: the stage before {second} would be empty.")
        if before > behind:
            raise ConfigError("bad-split", f"--split {first},{second}: the model calls {second} first.")
    for name, begin in zip(names, begins, strict=True):
        _require_one_edge(model, nodes, name, begin)
    _reject_random_draws(nodes, names)
    bounds = [0, *begins, len(nodes)]
    stages: list[nn.Module] = [_stage(model, nodes, begin, end) for begin, end in pairwise(bounds)]
    _require_own_parameters(stages)
    return stages


def places(model: nn.Module) -> list[str]:
    """Return the submodules before which ``model`` can be cut, in the order of their calls.

    The search opens the model itself and its nn.Sequential containers, no other modules.

    Raises:
        ConfigError: if the model cannot be traced.
    """
    containers = {name for name, module in model.named_modules() if name and isinstance(module, nn.Sequential)}
    nodes = _trace(model, opened=containers | _ancestors(containers), option="--split auto")
    return [_outermost(nodes, name) for name in _possible(nodes)[1:]]  # a stage before the first one would be empty


def _outermost(nodes: list[fx.Node], name: str) -> str:
    """Return the outermost module whose first nested call is to ``name``."""
    around = sorted(_ancestors([name]), key=len)
    return next(other for other in [*around, name] if nodes[_calls_in(nodes, other)[0]].target == name)


def _ancestors(names: Iterable[str]) -> set[str]:
    """Return the names of all modules that contain the modules ``names``."""
    return {name[:place] for name in names for place, character in enumerate(name) if character == "."}


def _calls_in(nodes: list[fx.Node], name: str) -> list[int]:
    """Return the positions of the calls of module ``name``, or of its inner modules if the trace has opened it."""
    return [
        place
        for place, node in enumerate(nodes)
        if node.op == "call_module" and f"{node.target}.".startswith(f"{name}.")
    ]


def _possible(nodes: list[fx.Node]) -> list[str]:
    """Return the modules of a graph that are called once, and before which exactly one tensor crosses a cut."""
    return [
        str(node.target)
        for place, node in enumerate(nodes)
        if node.op == "call_module"
        and len(_crossing(nodes, place)) == 1
        and [other.target for other in nodes].count(node.target) == 1
    ]


class _Tracer(fx.Tracer):
    """Tracer that opens the modules around the cuts, and treats all others as leaves."""

    def __init__(self, opened: set[str]) -> None:
        super().__init__()
        self._opened = opened

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002 -- torch's names
        return module_qualified_name not in self._opened


def _trace(model: nn.Module, *, opened: set[str], option: str) -> list[fx.Node]:
    """Return the calls in ``model`` and in its modules ``opened``, in order."""
    try:
        return list(_Tracer(opened).trace(model).nodes)
    except Exception as error:  # a user-defined forward may do anything with non-tensors
        outer = [name for name, _ in model.named_children()]
        raise ConfigError(
            "bad-split",
            f"{option}: cannot trace the model: {reason_of(error)} "
            f"Cut before a module whose parents only pass tensors to their children: {_some(outer)}.",
        ) from error


def _begin_of(nodes: list[fx.Node], name: str) -> int:
    """Return the position of the only call of the submodule ``name``."""
    inside = _calls_in(nodes, name)
    calls = [place for place in inside if nodes[place].target == nodes[inside[0]].target]
    if len(calls) != 1:
        found = f"calls it {len(calls)} times" if calls else "never calls it"
        raise ConfigError(
            "bad-split", f"--split {name}: the model {found}; a stage must begin with a module that is called once."
        )
    return calls[0]


def _crossing(nodes: list[fx.Node], begin: int) -> list[fx.Node]:
    """Return the nodes before ``begin`` whose values are used at or after ``begin``."""
    behind = set(nodes[begin:])
    return [node for node in nodes[:begin] if node.op != "get_attr" and behind.intersection(node.users)]


def _require_one_edge(model: nn.Module, nodes: list[fx.Node], name: str, begin: int) -> None:
    crossing = _crossing(nodes, begin)
    if len(crossing) == 1:
        return
    values = " and ".join(str(node.target) for node in crossing) or "nothing"
    raise ConfigError(
        "bad-split",
        f"--split {name}: the results of {values} would cross the cut, but only one tensor may. "
        f"{type(model).__name__} can be cut before {_some(_possible(nodes))}.",
    )


def _reject_random_draws(nodes: list[fx.Node], names: Sequence[str]) -> None:
    """Raise a ConfigError for random draws between modules, which cannot be seeded alike in whole model and stages."""
    for node in nodes:
        called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op in {"call_function", "call_method"} and _draws(called):
            raise ConfigError(
                "bad-split",
                f"--split {','.join(names)}: the model calls {called} between its modules. In stages, it would draw "
                "other random numbers than in the whole model: replace it by a module (such as nn.Dropout).",
            )


def _draws(name: str) -> bool:
    """Return whether a function or method of this ``name`` draws random numbers."""
    operator = getattr(torch.ops.aten, name, None)
    overloads = [getattr(operator, overload) for overload in operator.overloads()] if operator else []
    return name in RANDOM or any(torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads)


def _stage(model: nn.Module, nodes: list[fx.Node], begin: int, end: int) -> fx.GraphModule:
    """Return the nodes from ``begin`` to ``end`` as a module that maps one tensor to one tensor."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    if begin:
        (entering,) = _crossing(nodes, begin)
        copies[entering] = graph.placeholder("entering")

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:  # a parameter of the model itself, read in the stage that uses it
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
                    f"--split: stages {owner + 1} and {number + 1} share a parameter ({other}, {name}), which can only "
                    "be on one device: cut elsewhere.",
                )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown}, and {len(names) - SHOWN} more" if len(names) > SHOWN else shown or "no module"
