"""The state of an optimizer, with its groups of parameters as they were when it was saved."""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from slipway.base.errors import SessionError, warn
from slipway.state.loadable import named
from slipway.state.schedulers import unscheduled

log = logging.getLogger(__name__)

OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"}
"""What schedulers of learning rates leave in an optimizer's groups of parameters."""
NAMES = "names_of_parameters"
"""In a state that is saved: the parameters of each group by name, if the groups have changed since the opening."""


class OptimizerState:
    """An optimizer's state and its groups of parameters, dtypes kept.

    Groups may be added after the session has opened: before the loop, by a line that runs in each attempt, or in an
    epoch, by one that a resumed attempt does not run again. So the first load, at the opening, accepts that groups are
    missing; the second, where training continues, makes those that are still missing.
    """

    def __init__(
        self,
        name: str,
        optimizer: Optimizer,
        parameters: Callable[[], Mapping[str, Tensor]],
        schedulers: Sequence[object],
    ) -> None:
        """Save ``optimizer``.

        Args:
            name: of the component.
            optimizer: of torch, or a subclass.
            parameters: returns those of the session's models by name, by which groups are made anew.
            schedulers: what may set its learning rate and is saved, too.

        Raises:
            SessionError: if it is sharded over the ranks.
        """
        if hasattr(optimizer, "consolidate_state_dict"):  # ZeroRedundancyOptimizer's, and FairScale's
            raise SessionError(
                "sharded-model", f"{name} is a {type(optimizer).__name__}, of which each rank has a part only."
            )
        self._name = name
        self._optimizer = optimizer
        self._parameters, self._schedulers = parameters, schedulers
        self._at_first = self._groups()
        self._loads = 0
        self._missing: list[dict[str, Any]] | None = None
        """The groups that were saved, if they were not all there at the opening."""
        self._warned_of_scheduler = self._warned_of_groups = False

    def state_dict(self) -> dict[str, Any]:
        """Return its state_dict; warn of what the next attempt cannot continue with.

        Raises:
            SessionError: if groups that were saved are still missing.
        """
        if self._missing:
            self._require_same(self._missing)
        state = self._optimizer.state_dict()
        if not self._warned_of_scheduler and unscheduled(self._optimizer, self._schedulers):
            self._warned_of_scheduler = True
            warn(log, "scheduler-not-given", "a scheduler works on %s and was not given to the session", self._name)
        if self._groups() == self._at_first:
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
                "the groups of %s have changed since the session began, and have parameters of no model of the session",
                self._name,
            )
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state over.

        Raises:
            SessionError: if it is another optimizer's.
        """
        if "param_groups" not in state_dict:  # of an optimizer with another format
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
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        for number, saved in state["state"].items():
            if isinstance(number, int) and isinstance(saved, dict) and number < len(parameters):
                self._restore_layout(parameters[number], saved)

    def _load(self, state: dict[str, Any]) -> None:
        """Load as torch does, but into the existing groups, to which the script may hold references."""
        groups = [*self._optimizer.param_groups]
        self._optimizer.load_state_dict(state)
        if type(self._optimizer).load_state_dict is not Optimizer.load_state_dict:
            return  # it may share its groups with another optimizer
        for group, loaded in zip(groups, self._optimizer.param_groups, strict=True):
            group.clear()
            group.update(loaded)
        self._optimizer.param_groups[:] = groups

    def _groups(self) -> list[list[int]]:
        return [[id(parameter) for parameter in group["params"]] for group in self._optimizer.param_groups]

    def _known_groups(self, saved: dict[str, Any], *, may_differ: bool) -> dict[str, Any]:
        """Return the part of ``saved`` for the first groups, if the others may be made before training continues."""
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
        """Give the optimizer the groups that were ``saved``, with the parameters ``names``.

        Raises:
            SessionError: if the models have no such parameters.
        """
        parameters, groups = self._parameters(), self._optimizer.param_groups
        if unknown := [name for group in names for name in group if name not in parameters]:
            raise SessionError(
                "different-state",
                f"{self._name} had parameters that no model of the session has: {named(unknown)}.",
            )
        del groups[len(names) :]
        for group, own in zip(groups, names, strict=False):
            group["params"] = [parameters[name] for name in own]
        for options, own in zip(saved[len(groups) :], names[len(groups) :], strict=True):
            self._optimizer.add_param_group({**options, "params": [parameters[name] for name in own]})

    def _require_same(self, saved: list[dict[str, Any]]) -> None:
        """Raise a SessionError if the groups that were ``saved`` are another optimizer's."""
        groups = self._optimizer.param_groups
        was, own = ({key for group in either for key in group} - OF_SCHEDULERS for either in (saved, groups))
        if was - own and own - was:  # one of them alone: another version of torch
            raise SessionError(
                "different-state",
                f"{self._name} was of another kind when it was saved: with {named(sorted(was - own))}.",
            )
        before, now = ([len(group["params"]) for group in each] for each in (saved, groups))
        if before != now:
            raise SessionError(
                "different-state",
                f"{self._name} had groups of {before} parameters when it was saved, and has {now}. If the script adds "
                "groups in an epoch, let it add them before the session opens once the run has reached that epoch, "
                "which slipway.peek returns.",
            )

    def _note_rates(self, saved: list[dict[str, Any]]) -> None:
        """Say so if the run continues with another learning rate than the script has set."""
        for was, group in zip(saved, self._optimizer.param_groups, strict=True):
            key = "initial_lr" if "initial_lr" in was and "initial_lr" in group else "lr"
            before, now = was.get(key), group.get(key)
            if before != now:
                log.info("%s continues with the %s %s that was saved, not %s", self._name, key, before, now)

    def _restore_layout(self, parameter: Tensor, saved: dict[str, Any]) -> None:
        """Give state its dtype back, for which torch takes the parameter's, and the parameter's order in memory."""
        state = self._optimizer.state[parameter]
        for key, value in saved.items():
            loaded = state.get(key)
            if not isinstance(value, Tensor) or not isinstance(loaded, Tensor):
                continue
            if loaded.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
            elif loaded.dtype != value.dtype:
                state[key] = value.to(loaded.device)
