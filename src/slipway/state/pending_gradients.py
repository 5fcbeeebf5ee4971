"""Gradients that wait for an optimiser step: whether a checkpoint needs them, and whether it may wait for that step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Print = dict[int, tuple[weakref.ref[Tensor], int]]
"""Of each parameter that has a gradient, by its id: that gradient, and how often it was written in place."""


class PendingGradients:
    """The gradients of what a session trains, as far as its optimiser steps and one look at each pass tell of them.

    A place in training needs no gradients if each optimiser has stepped since they were written, and the script zeroes
    them before it adds others. The first is known from the steps: after a body in which all have stepped, those that a
    later backward pass of the same body wrote (a generator's, into its critic) count as done. The second is seen in
    some bodies, by hooks: few, and ever fewer, as they cost time for each parameter.
    """

    def __init__(self, parameters: Sequence[Tensor], optimizers: Iterable[Any], *, carried: bool | None) -> None:
        """Look at no gradient yet.

        Args:
            parameters: of the models.
            optimizers: whose groups may hold others.
            carried: what ``is_carried`` was when the run was saved.
        """
        self.of_models = parameters
        self._optimizers = [*optimizers]
        self.is_carried = carried
        """Whether gradients are added to those of bodies in which all have stepped; None if that is not known yet."""
        self.wait = False
        """Whether some optimiser may not have stepped since its gradients were written."""
        self.left_over = False
        """Whether none has: a script's own counter of batches is right again after its next step only."""
        self._before: tuple[bool, bool, Print] = False, False, {}
        self._has_stepped = False
        self._watched: list[Watched] = []
        self._next_look = 0
        self.bodies = 0
        """Bodies of loops begun in this attempt."""

    @property
    def parameters(self) -> list[Tensor]:
        """Those whose gradients may wait, each once: of the models, then of the optimisers' groups."""
        groups = [group for optimizer in self._optimizers for group in getattr(optimizer, "param_groups", ())]
        of_groups = (parameter for group in groups for parameter in group["params"])
        return [*{id(parameter): parameter for parameter in (*self.of_models, *of_groups)}.values()]

    @property
    def must_be_saved(self) -> bool:
        """Whether training can only continue from here with the gradients; waits for the GPU. To be asked at a save."""
        self._next_look = 0
        return (self.wait or self.is_carried is not False) and any(is_nonzero(p.grad) for p in self.parameters)

    def resume(self) -> None:
        """Take those that are there for restored ones."""
        self.wait = True

    def begin_pass(self) -> None:
        """Note how the gradients are before a pass."""
        self._before, self._has_stepped = (self.wait, self.left_over, self._print()), False

    def begin_body(self) -> None:
        """Look from time to time what becomes of gradients with which all optimisers have stepped."""
        self.bodies += 1
        if self.bodies < self._next_look or self.wait or self.is_carried or self._watched:
            return
        self._watched = [Watched(parameter) for parameter in self.parameters if is_nonzero(parameter.grad)]
        self._next_look = self.bodies + max(1, self.bodies // 2)

    def before_step(self, optimizer: Any) -> None:
        """Look whether a step uses gradients with which all have stepped before."""
        if self._watched:
            own = {id(parameter) for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]}
            for watched in self._watched:
                if id(watched.parameter) in own:
                    watched.use()

    def end_body(self, steps: Sequence[int]) -> None:
        """Take in how many steps each optimiser has made in a body."""
        if any(steps):
            self.step(steps)
        else:
            self.wait = self.left_over = True  # unless the whole pass writes none: a validation

    def step(self, steps: Sequence[int]) -> None:
        """Take in steps, at least one, of which nothing more is known than in a body."""
        self._has_stepped = True
        self.wait, self.left_over = not all(steps), False
        if self._watched and not self.wait:
            found = {watched.is_carried for watched in self._watched}
            self.close()
            self.is_carried = True if True in found else False if found else self.is_carried

    def end_pass(self) -> None:
        """Go back to how it was before a pass that has made no step, if it has written no gradients either."""
        wait, left_over, before = self._before
        if not self._has_stepped and not self._have_been_written(before):
            self.wait, self.left_over = wait, left_over

    def close(self) -> None:
        """Remove the hooks."""
        while self._watched:
            self._watched.pop().close()

    def _print(self) -> Print:
        grads = ((id(parameter), parameter.grad) for parameter in self.parameters)
        return {key: (weakref.ref(grad), grad._version) for key, grad in grads if grad is not None}  # noqa: SLF001 -- autograd's

    def _have_been_written(self, before: Print) -> bool:
        """Return whether a gradient other than 0 was written since ``before``."""
        for parameter in self.parameters:
            grad, (ref, version) = parameter.grad, before.get(id(parameter), (None, 0))
            same = grad is not None and ref is not None and ref() is grad and grad._version == version  # noqa: SLF001
            if not same and is_nonzero(grad):
                return True
        return False


class Watched:
    """A parameter whose gradient is done with: whether a step uses it again, as nothing zeroes or removes it before."""

    def __init__(self, parameter: Tensor) -> None:
        """Look at ``parameter`` whenever a backward pass has computed its gradient, and not added it yet."""
        self.parameter = parameter
        self._before = weakref.ref(parameter.grad)
        self._found: bool | None = None
        self._is_used = False
        self._hook = parameter.register_hook(self._look) if parameter.requires_grad else None

    @property
    def is_carried(self) -> bool:
        """Whether the gradient was always there, or is there now if no other has come."""
        if self._found is None:
            return self.parameter.grad is self._before() and is_nonzero(self.parameter.grad)
        return self._found

    def use(self) -> None:
        """Note that a step uses the gradient."""
        self._found = self.is_carried
        self._is_used = True

    def close(self) -> None:
        """Look no more, and leave each backward pass as fast as before: torch would still call a list without hooks."""
        if self._hook:
            self._hook.remove()
            if not self.parameter._backward_hooks:  # noqa: SLF001 -- torch offers nothing public
                self.parameter._backward_hooks = None  # noqa: SLF001

    def _look(self, *_: Any) -> None:
        if self._found is False or self._is_used:
            return
        if not (self.parameter.is_cuda and torch.cuda.is_current_stream_capturing()):
            self._found = is_nonzero(self.parameter.grad)


def is_nonzero(gradient: Tensor | None) -> bool:
    """Return whether there is a gradient with an element other than 0."""
    if gradient is None:
        return False
    return bool((gradient.coalesce().values() if gradient.is_sparse else gradient).any())
