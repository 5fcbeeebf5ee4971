"""State of an optimizer, including its parameter groups as saved."""

from __future__ import annotations

import itertools
import logging
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from slipway.base.errors import SessionError, warn
from slipway.checkpoint.shards import is_sharded
from slipway.state.loadable import named
from slipway.state.optimizer_attributes import parameters_in
from slipway.state.schedulers import has_unsaved_scheduler

log = logging.getLogger(__name__)

SCHEDULER_KEYS = {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"}
"""Keys that learning-rate schedulers add to parameter groups."""
NAMES = "names_of_parameters"
"""Key in a saved state: names of each group's parameters, present if the groups have changed since the opening."""


class OptimizerState:
    """An optimizer's state and parameter groups, with their dtypes.

    A script may add groups after the session has opened: before the loop, by a line that runs in each attempt, or in an
    epoch, by a line that a resumed attempt does not run again. The first load, at the opening, therefore accepts
    missing groups. The second load, when training continues, creates the groups that are still missing.
    """

    def __init__(
        self,
        name: str,
        optimizer: Optimizer,
        parameters: Callable[[], Mapping[str, Tensor]],
        schedulers: Sequence[object],
    ) -> None:
        """Record the current parameter groups of ``optimizer``.

        Args:
            name: name of the component.
            optimizer: an optimizer of torch, or of a subclass.
            parameters: returns the parameters of the session's models by name, to recreate groups.
            schedulers: saved objects that may set the optimizer's learning rate.

        Raises:
            SessionError: if the optimizer's state is sharded over the ranks.
        """
        if hasattr(optimizer, "consolidate_state_dict"):  # ZeroRedundancyOptimizer, and FairScale's OSS
            raise SessionError(
                "sharded-model", f"{name} is a {type(optimizer).__name__}, of which each rank holds only a shard."
            )
        self._name = name
        self._optimizer = optimizer
        self._parameters, self._schedulers = parameters, schedulers
        self._initial = self._groups()
        self._loads = 0
        self._missing: list[dict[str, Any]] | None = None
        """The saved groups, if some of them were missing at the opening; else None."""
        self._warned_of_scheduler = self._warned_of_groups = False

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state_dict; warn of state that the next attempt cannot restore.

        Raises:
            SessionError: if saved groups are still missing.
        """
        if self._missing:
            self._require_same(self._missing)
        state = self._optimizer.state_dict()
        if not self._warned_of_scheduler and has_unsaved_scheduler(self._optimizer, self._schedulers):
            self._warned_of_scheduler = True
            warn(log, "scheduler-not-given", "a scheduler of %s was not passed to the session", self._name)
        if self._groups() == self._initial:
            return state
        names = {id(parameter): name for name, parameter in self._parameters().items()}
        groups = [[names.get(number, "") for number in group] for group in self._groups()]
        if all(map(all, groups)):
            return {**state, NAMES: groups}
        if not self._warned_of_groups:
            self._warned_of_groups = True
            warn(
                log,
                "unresumable-state",
                "the groups of %s have changed since the session began and contain parameters of no session model",
                self._name,
            )
        return state

    @property
    def is_sharded(self) -> bool:
        """Whether a parameter of the optimizer is a DTensor."""
        return any(map(is_sharded, parameters_in(self._optimizer)))

    def layouts(self, saved: Mapping[str, Any]) -> Callable[[str], Tensor | None]:
        """Return the function that returns the parameter to which a tensor of the state ``saved`` belongs."""
        named, names = self._parameters(), [name for group in saved.get(NAMES, ()) for name in group]
        parameters = [named.get(name) for name in names] or [*parameters_in(self._optimizer)]

        def find(name: str) -> Tensor | None:
            found = re.search(r"/'state'/(\d+)/", name)
            return parameters[int(found[1])] if found and int(found[1]) < len(parameters) else None

        return find

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state; see the class for the first and the second load.

        Raises:
            SessionError: if the state is that of another optimizer.
        """
        if "param_groups" not in state_dict:  # the optimizer has its own format
            self._optimizer.load_state_dict(state_dict)
            return
        self._loads += 1
        state = dict(state_dict)
        names = state.pop(NAMES, None)
        self._missing = None
        if self._loads == 1:
            known = self._known_groups(state, may_differ=names is not None)
            self._missing = None if known is state else state["param_groups"]
            state = known
        elif names is not None:
            self._make_groups(names, state["param_groups"])
        self._require_same(state["param_groups"])
        if self._loads == 1:
            self._note_rates(state["param_groups"])
        self._load(state)
        parameters = [*parameters_in(self._optimizer)]
        for number, saved in state["state"].items():
            if isinstance(number, int) and isinstance(saved, dict) and number < len(parameters):
                self._restore_layout(parameters[number], saved)

    def _load(self, state: dict[str, Any]) -> None:
        """Load as torch does, but into the existing groups, because the script may hold references to them."""
        groups = [*self._optimizer.param_groups]
        self._optimizer.load_state_dict(state)
        if type(self._optimizer).load_state_dict is not Optimizer.load_state_dict:
            return  # this optimizer may share its groups with another one
        for group, loaded in zip(groups, self._optimizer.param_groups, strict=True):
            group.clear()
            group.update(loaded)
        self._optimizer.param_groups[:] = groups

    def _groups(self) -> list[list[int]]:
        return [[id(parameter) for parameter in group["params"]] for group in self._optimizer.param_groups]

    def _known_groups(self, saved: dict[str, Any], *, may_differ: bool) -> dict[str, Any]:
        """Return ``saved`` with only its leading groups that fit, if the script may add the others later."""
        own = self._optimizer.state_dict()
        before, now = ([len(group["params"]) for group in each["param_groups"]] for each in (saved, own))
        alike = len(list(itertools.takewhile(operator.truth, map(operator.eq, before, now))))
        if before == now or (alike < len(now) and not may_differ):
            return saved
        groups = saved["param_groups"][:alike]
        numbers = {number for group in groups for number in group["params"]}
        state = {number: value for number, value in saved["state"].items() if number in numbers}
        return {**saved, "state": state, "param_groups": [*groups, *own["param_groups"][alike:]]}

    def _make_groups(self, names: list[list[str]], saved: list[dict[str, Any]]) -> None:
        """Create the ``saved`` groups in the optimizer, with the parameters ``names``.

        Raises:
            SessionError: if the models lack one of the parameters.
        """
        parameters, groups = self._parameters(), self._optimizer.param_groups
        if unknown := [name for group in names for name in group if name not in parameters]:
            raise SessionError(
                "different-state",
                f"{self._name} was saved with parameters that no model of the session has: {named(unknown)}.",
            )
        del groups[len(names) :]
        for group, own in zip(groups, names, strict=False):
            group["params"] = [parameters[name] for name in own]
        for options, own in zip(saved[len(groups) :], names[len(groups) :], strict=True):
            self._optimizer.add_param_group({**options, "params": [parameters[name] for name in own]})

    def _require_same(self, saved: list[dict[str, Any]]) -> None:
        """Raise a SessionError if the ``saved`` groups do not fit this optimizer."""
        groups = self._optimizer.param_groups
        was, own = ({key for group in either for key in group} - SCHEDULER_KEYS for either in (saved, groups))
        if was - own and own - was:  # a difference in one direction only means another version of torch
            raise SessionError(
                "different-state",
                f"{self._name} was another type of optimizer when saved: with {named(sorted(was - own))}.",
            )
        before, now = ([len(group["params"]) for group in each] for each in (saved, groups))
        if before != now:
            raise SessionError(
                "different-state",
                f"{self._name} was saved with parameter groups of sizes {before}, and now has {now}. If the script "
                "adds groups in an epoch, add them before the session opens if the run has begun that epoch: "
                "slipway.peek returns the epoch.",
            )

    def _note_rates(self, saved: list[dict[str, Any]]) -> None:
        """Log if the run continues with another learning rate than the script has set."""
        for was, group in zip(saved, self._optimizer.param_groups, strict=True):
            key = "initial_lr" if "initial_lr" in was and "initial_lr" in group else "lr"
            before, now = was.get(key), group.get(key)
            if before != now:
                log.info("%s continues with the saved %s %s, not %s", self._name, key, before, now)

    def _restore_layout(self, parameter: Tensor, saved: dict[str, Any]) -> None:
        """Restore the saved dtype, which torch replaces by the parameter's, and use the parameter's memory format."""
        state = self._optimizer.state[parameter]
        for key, value in saved.items():
            loaded = state.get(key)
            if not isinstance(value, Tensor) or not isinstance(loaded, Tensor):
                continue
            if is_sharded(parameter) and not is_sharded(value) and value.ndim and value.shape != parameter.shape:
                raise SessionError(
                    "different-state",
                    f"{self._name} was saved with a {key} of shape {[*value.shape]} for a parameter that now has shape "
                    f"{[*parameter.shape]}: the optimizer got its parameters in another order.",
                )
            if loaded.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
            elif loaded.dtype != value.dtype:
                state[key] = value.to(loaded.device)
