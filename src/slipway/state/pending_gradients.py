"""Gradients that wait for an optimizer step: whether to save them, or to delay the checkpoint until that step."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from slipway.checkpoint.shards import is_sharded, local_part
from slipway.state.optimizer_attributes import parameters_in

Print = dict[int, tuple[weakref.ref[Tensor], int]]
"""By parameter id: the parameter's gradient, and its version, which counts writes in place."""


class PendingGradients:
    """Tracks whether a checkpoint at the current position must contain gradients.

    It need not if each optimizer has stepped since its gradients were written, and the script zeroes them before it
    adds new ones. The first condition follows from the steps. After a loop body in which all optimizers have stepped,
    gradients that a later backward pass of the same body wrote (a generator's pass through its critic) count as used.
    The second condition is observed by hooks in some bodies, less and less often, because hooks cost time for each
    parameter.
    """

    def __init__(self, parameters: Sequence[Tensor], optimizers: Iterable[Any], *, carried: bool | None) -> None:
        """Start without hooks.

        Args:
            parameters: the models' parameters.
            optimizers: the optimizers, whose groups may hold other parameters.
            carried: the saved value of ``is_carried``.
        """
        self.model_parameters = parameters
        self._optimizers = [*optimizers]
        self.is_carried = carried
        """Whether gradients accumulate onto those with which all optimizers have stepped; None if not yet known."""
        self.wait = False
        """Whether some optimizer may not have stepped since its gradients were written."""
        self.left_over = False
        """Whether none has stepped, so that a script's own batch counter is right again only after its next step."""
        self._before: tuple[bool, bool, Print] = False, False, {}
        self._has_stepped = False
        self._watched: list[WatchedGradient] = []
        self._next_look = 0
        self.bodies = 0
        """Loop bodies begun in this attempt."""

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters whose gradients may wait, each once: those of the models, then of the optimizers' groups."""
        of_groups = (parameter for optimizer in self._optimizers for parameter in parameters_in(optimizer))
        return [*{id(parameter): parameter for parameter in (*self.model_parameters, *of_groups)}.values()]

    @property
    def needs_saving(self) -> bool:
        """Whether a checkpoint at this position must contain the gradients; waits for the GPU. Read it at a save."""
        self._next_look = 0
        return (self.wait or self.is_carried is not False) and any(is_nonzero(p.grad) for p in self.parameters)

    def resume(self) -> None:
        """Treat the current gradients as restored: pending until the next step."""
        self.wait = True

    def begin_pass(self) -> None:
        """Record the state of the gradients before a pass."""
        self._before, self._has_stepped = (self.wait, self.left_over, self._print()), False

    def begin_body(self) -> None:
        """In some bodies, watch gradients with which all optimizers have stepped."""
        self.bodies += 1
        if self.bodies < self._next_look or self.wait or self.is_carried or self._watched:
            return
        self._watched = [WatchedGradient(parameter) for parameter in self.parameters if is_nonzero(parameter.grad)]
        self._next_look = self.bodies + max(1, self.bodies // 2)

    def before_step(self, optimizer: Any) -> None:
        """Record whether a step of ``optimizer`` uses gradients with which all optimizers have stepped before."""
        if self._watched:
            own = {*map(id, parameters_in(optimizer))}
            for watched in self._watched:
                if id(watched.parameter) in own:
                    watched.use()

    def end_body(self, steps: Sequence[int]) -> None:
        """Record the number of steps of each optimizer in a body."""
        if any(steps):
            self.step(steps)
        else:
            self.wait = self.left_over = True  # end_pass undoes this if the pass writes no gradients: a validation

    def step(self, steps: Sequence[int]) -> None:
        """Record the number of steps of each optimizer, at least one of them nonzero."""
        self._has_stepped = True
        self.wait, self.left_over = not all(steps), False
        if self._watched and not self.wait:
            found = {watched.is_carried for watched in self._watched}
            self.close()
            self.is_carried = True if True in found else False if found else self.is_carried

    def end_pass(self) -> None:
        """Restore the state from before the pass if the pass had no steps and has written no gradients."""
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
        """Return whether a nonzero gradient was written since ``before``."""
        for parameter in self.parameters:
            grad, (ref, version) = parameter.grad, before.get(id(parameter), (None, 0))
            same = grad is not None and ref is not None and ref() is grad and grad._version == version  # noqa: SLF001
            if not same and is_nonzero(grad):
                return True
        return False


class WatchedGradient:
    """Parameter whose gradient a step has consumed; used to detect that a later step uses that gradient again."""

    def __init__(self, parameter: Tensor) -> None:
        """Register a hook that runs when a backward pass has computed a gradient and not yet accumulated it."""
        self.parameter = parameter
        self._before = weakref.ref(parameter.grad)
        self._found: bool | None = None
        self._is_used = False
        self._hook = parameter.register_hook(self._look) if parameter.requires_grad else None

    @property
    def is_carried(self) -> bool:
        """Whether the old gradient was present when a new one arrived; without a new one, whether it is present now."""
        if self._found is None:
            return self.parameter.grad is self._before() and is_nonzero(self.parameter.grad)
        return self._found

    def use(self) -> None:
        """Record that a step uses the gradient."""
        self._found = self.is_carried
        self._is_used = True

    def close(self) -> None:
        """Remove the hook, and torch's empty list of hooks, which would slow down each backward pass."""
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
    """Return whether ``gradient`` exists and has a nonzero element."""
    if gradient is None:
        return False
    if is_sharded(gradient):  # any() of a DTensor would wait for the other ranks
        gradient = local_part(gradient)
    return bool((gradient.coalesce().values() if gradient.is_sparse else gradient).any())
