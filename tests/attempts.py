"""Run attempts of a script in this process: an uninterrupted run, and one that SIGTERM stops in given loop bodies."""

import os
import signal
from itertools import chain

import pytest
import torch
from torch import nn

from slipway import Session, Stopped


def terminate():
    """Send this process SIGTERM; the session stops at its next stop point."""
    os.kill(os.getpid(), signal.SIGTERM)


class Attempt:
    """One attempt: a model of two layers, an SGD for each, and the loop body that SIGTERM stops."""

    def __init__(self, folder, stop_at=None):
        torch.manual_seed(0)
        self.folder, self.stop_at, self.bodies = folder, stop_at, 0
        self.seen = []
        self.model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.Linear(2, 1))
        self.first, self.second = (torch.optim.SGD(self.model[n].parameters(), lr=0.01, momentum=0.5) for n in (0, 2))
        self.both = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.5)

    def open(self, **options):
        options = {"optimizer": self.both, "log_interval": 1000, **options}
        return Session(**{"model": self.model, "folder": self.folder, **options})

    def backward(self, given=0.0):
        """Start a loop body with a number or a batch of numbers, add to the gradients, and return the loss."""
        self.bodies += 1
        if self.bodies == self.stop_at:
            terminate()
        numbers = torch.as_tensor(given, dtype=torch.float32).reshape(-1, 1)
        self.seen.append(given.tolist() if isinstance(given, torch.Tensor) else given)
        loss = self.model(0.1 + numbers.expand(-1, 2) % 5 / 10).square().mean()
        loss.backward()
        return loss.detach()

    def update(self, given=0.0):
        """Take a full step (zero_grad, backward, step) and return the loss."""
        self.both.zero_grad()
        loss = self.backward(given)
        self.both.step()
        return loss

    def apply(self):
        """Take a step with the accumulated gradients."""
        self.both.step()
        self.both.zero_grad()

    def result(self, session):
        """Return a run's final step, states and next random number."""
        states = [each.state_dict() for each in (self.model, self.first, self.second, self.both)]
        return [session.step, plain(states), torch.rand(1).item()]


def plain(tree):
    """Return a state with tensors as lists, exact to the last bit."""
    if isinstance(tree, torch.Tensor):
        return tree.tolist()
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    return [plain(each) for each in tree] if isinstance(tree, (list, tuple)) else tree


def in_session(**options):
    """Decorate a function of an attempt and its session as a script that opens the session and returns the result."""

    def decorate(body):
        def script(attempt):
            with attempt.open(**options) as session:
                body(attempt, session)
                return attempt.result(session)

        return script

    return decorate


def whole_and_stopped(tmp_path, script, *stops):
    """Assert that ``script(attempt)`` sees and returns the same if one attempt each is stopped in the bodies ``stops``.

    Return the inputs that each attempt has seen.
    """
    whole = Attempt(tmp_path / "whole")
    expected, seen = script(whole), []
    for stop in stops:
        part = Attempt(tmp_path / "parts", stop)
        with pytest.raises(Stopped):
            script(part)
        seen.append(part.seen)
    last = Attempt(tmp_path / "parts")
    assert script(last) == expected
    seen.append(last.seen)
    assert [*chain(*seen)] == whole.seen
    return seen
