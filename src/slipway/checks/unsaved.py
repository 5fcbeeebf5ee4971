"""What optimisers train or keep that a session does not save: parameters of no given model, optimisers not given."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from slipway.base.errors import SessionError, warn
from slipway.state.optimizer_attributes import tensors_in
from slipway.state.pending_gradients import PendingGradients
from slipway.state.steps import StepCounter, unwrapped

log = logging.getLogger(__name__)


def require_saved_parameters(
    optimizers: Mapping[str, Any], models: Mapping[str, Any], extra: Mapping[str, Any]
) -> None:
    """Raise a SessionError, naming it, if an optimiser trains what no checkpoint would hold.

    Args:
        optimizers: by name.
        models: by name.
        extra: other objects that are saved.
    """
    tensors = [tensor for model in models.values() for tensor in model.parameters()]
    known = {id(tensor) for tensor in tensors}
    if all(id(parameter) in known for parameter in _trained(optimizers.values())):
        return
    states = [each.state_dict() for each in extra.values() if hasattr(each, "state_dict")]
    storages = {tensor.data_ptr() for tensor in (*tensors, *tensors_in(states)) if tensor.numel()}
    for name, optimizer in optimizers.items():
        groups = getattr(optimizer, "param_groups", ())
        unsaved = [
            f"group {number}, number {place}, {list(parameter.shape)}"
            for number, group in enumerate(groups)
            for place, parameter in enumerate(group["params"])
            if id(parameter) not in known and not (parameter.numel() and parameter.data_ptr() in storages)
        ]
        if unsaved:
            raise SessionError(
                "parameters-not-given",
                f"{name} trains {len(unsaved)} parameter(s) of no given model ({'; '.join(unsaved[:3])}): pass the "
                'module that has them too, Session(model={"net": net, "other": other}), a single tensor as '
                "nn.ParameterList([tensor]).",
            )


def _values(tree: Any) -> Iterator[Any]:
    """Yield ``tree`` and all values in it."""
    yield tree
    if isinstance(tree, (Mapping, list, tuple)):
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _values(each)


@dataclass
class Seen:
    """An optimiser of torch that has stepped, and is not the session's."""

    optimizer: weakref.ref[Optimizer]
    outer: tuple[str, Any] | None
    """Name and object of the session's optimiser within whose steps it makes its own; None if it has made others."""
    body: int
    """Number of the body in which it has made the first."""
    options: list[dict[str, Any]]
    """Of its groups after that."""
    has_returned: bool = False
    """Whether it has stepped in a later body, too."""


class UnknownOptimizers:
    """Optimisers that step and are not given to the session: found by torch's hook for the steps of all optimisers.

    Those that are made anew in each body, as for the inner loop of MAML, have nothing to save.
    """

    def __init__(self, given: Mapping[str, Any], counter: StepCounter, gradients: PendingGradients) -> None:
        """Find others.

        Args:
            given: the session's, by name.
            counter: of the steps of these.
            gradients: which count the bodies, and know the parameters of the models.
        """
        self._given = {name: unwrapped(optimizer) for name, optimizer in given.items()}
        self._counter, self._gradients = counter, gradients
        self._known = {id(each) for each in (*given.values(), *self._given.values())}
        self._seen: dict[int, Seen] = {}
        self._warned: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._hook = register_optimizer_step_post_hook(self._note)

    def close(self) -> None:
        """Remove the hook."""
        self._hook.remove()

    def warn(self) -> None:
        """Warn once of each that is in use, unless the given ones save all that it keeps; to be called at a save."""
        if any(seen.optimizer() for seen in self._seen.values()):
            gc.collect()  # a scheduler's optimiser is in a cycle of references
        for key, seen in [*self._seen.items()]:
            optimizer = seen.optimizer()
            if optimizer is None:
                del self._seen[key]
            elif (seen.has_returned or self._alone_trains(optimizer)) and not _is_saved(optimizer, seen):
                self._warned.add(optimizer)
                del self._seen[key]
                self._warn(optimizer, seen.outer)

    def _alone_trains(self, optimizer: Optimizer) -> bool:
        """Return whether it has parameters of the given models that no given optimiser has."""
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        given = {id(parameter) for parameter in _trained(self._given.values())}
        return any(id(parameter) in own - given for parameter in self._gradients.of_models)

    def _warn(self, optimizer: Optimizer, outer: tuple[str, Any] | None) -> None:
        warn(
            log,
            "optimizer-not-given",
            'a %s%s steps, and its state is not saved: give it too, Session(optimizer={"one": ..., "other": ...}); '
            "given: %s",
            type(optimizer).__name__,
            f" within {outer[0]}" if outer else "",
            ", ".join(self._given),
        )

    def _note(self, optimizer: Optimizer, *_: Any) -> None:
        """Note a step that ``optimizer`` has made."""
        key = id(optimizer)
        if key in self._known or optimizer in self._warned:
            return
        seen, body = self._seen.get(key), self._gradients.bodies
        if seen is None or seen.optimizer() is not optimizer:
            self._seen[key] = Seen(weakref.ref(optimizer), self._outer(), body, _options(optimizer))
            return
        seen.has_returned |= body > seen.body
        seen.outer = seen.outer and self._outer()

    def _outer(self) -> tuple[str, Any] | None:
        within = self._counter.is_within
        return next(((name, each) for name, each in self._given.items() if each is within), None)


def _trained(optimizers: Iterable[Any]) -> Iterator[Tensor]:
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            yield from group["params"]


def _options(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the options of its groups, as they compare."""
    return [
        {key: value.tolist() if isinstance(value, Tensor) else value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def _is_saved(inner: Optimizer, seen: Seen) -> bool:
    """Return whether the state of the session's optimiser within whose steps ``inner`` steps holds all of its own."""
    if seen.outer is None:
        return False
    outer = seen.outer[1]
    groups = getattr(outer, "param_groups", ())
    if not all(any(group is own for own in groups) for group in inner.param_groups) and _options(inner) != seen.options:
        return False
    if inner.state is getattr(outer, "state", None):
        return True
    saved = [*_values(outer.state_dict())]
    kept = {id(each) for each in saved if isinstance(each, dict)}
    storages = {each.data_ptr() for each in saved if isinstance(each, Tensor) and each.numel()}
    return all(
        id(state) in kept
        or all(isinstance(each, Tensor) and each.data_ptr() in storages for each in state.values() if each is not None)
        for state in inner.state.values()
    )
