"""Batch numbers in a resumed epoch: ``session.batch``, and counters that restart from 0."""

import contextlib
import itertools
import os
import signal

import pytest
import torch
from torch import nn
from tqdm import tqdm

from messages import assert_warning, slugs
from slipway import Session, Stopped

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


TOTALS = [6, 4, 3]
"""Batches of the passes of an epoch."""


class Script:
    def __init__(self, folder):
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.session = Session(model=self.model, optimizer=self.optimizer, folder=folder, checkpoint_steps=1)

    def step(self):
        self.model(torch.ones(1, 1)).sum().backward()
        self.optimizer.step()

    def run(self, *, stop_at=None, counted=lambda batches, _: enumerate(batches), epochs=2):
        """Train; stop in this batch of this pass of epoch 1. Return the values of ``session.batch``."""
        found = []
        with contextlib.suppress(Stopped), self.session as session:
            found.append(session.batch)
            for epoch in session.epochs(epochs):
                for number, total in enumerate(TOTALS):
                    found.append(session.batch)
                    batches = session.batches(range(total))
                    for _ in counted(batches, session):
                        self.step()
                        if (epoch, number, session.batch) == stop_at:
                            os.kill(os.getpid(), signal.SIGTERM)
        return found


@pytest.mark.parametrize("number", range(3))
def test_session_batch_is_correct_when_resumed_within_epoch(number, tmp_path):
    assert Script(tmp_path).run(stop_at=(1, number, 1))[0] == 0
    first = [*TOTALS[:number], 2]
    assert Script(tmp_path).run() == [first[0], *first, *[0] * (2 - number)]


def test_session_batch_is_0_when_resumed_between_epochs(tmp_path):
    Script(tmp_path).run(epochs=1)
    assert Script(tmp_path).run() == [0] * 4


class Own:
    """A class with ``__next__``, such as a prefetcher."""

    def __init__(self, batches):
        self.batches = iter(batches)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.batches)


def bar(batches):
    return tqdm(batches, disable=None)


COUNTERS = {
    "enumerate": (lambda batches, _: enumerate(batches), 0),
    "from 1": (lambda batches, _: enumerate(batches, 1), 1),
    "over all epochs": (lambda batches, session: enumerate(batches, session.epoch * TOTALS[0]), 6),
    "in a progress bar": (lambda batches, _: bar(enumerate(batches)), 0),
    "around a progress bar": (lambda batches, _: enumerate(bar(batches)), 0),
    "around a generator": (lambda batches, _: enumerate(batch for batch in bar(batches)), 0),
    "around map": (lambda batches, _: enumerate(map(abs, batches)), 0),
    "around islice": (lambda batches, _: enumerate(itertools.islice(batches, 9)), 0),
    "around a class": (lambda batches, _: enumerate(Own(batches)), 0),
    "zip": (lambda batches, _: zip(range(9), batches, strict=False), 0),
    "zip, behind": (lambda batches, _: zip(batches, range(9), strict=False), 0),
    "zip with count": (lambda batches, _: zip(itertools.count(), batches, strict=False), 0),
}
RIGHT = {
    "none": lambda batches, _: batches,
    "enumerate": lambda batches, session: enumerate(batches, session.batch),
    "from 1": lambda batches, session: enumerate(batches, session.batch + 1),
    "over all epochs": lambda batches, session: enumerate(batches, session.epoch * TOTALS[0] + session.batch),
    "steps": lambda batches, session: enumerate(batches, session.step),
    "around a progress bar": lambda batches, session: enumerate(bar(batches), session.batch),
    "zip": lambda batches, session: zip(range(session.batch, 9), batches, strict=False),
    "zip with count": lambda batches, session: zip(itertools.count(session.batch), batches, strict=False),
    "zip with something else": lambda batches, _: zip("abcdefgh", batches, strict=False),
}


@pytest.fixture
def stopped(tmp_path, caplog):
    Script(tmp_path).run(stop_at=(1, 0, 2))
    caplog.clear()
    return Script(tmp_path)


@pytest.mark.parametrize("name", COUNTERS)
def test_batch_counter_restarting_from_zero_warns(name, stopped, caplog):
    counted, number = COUNTERS[name]
    stopped.run(counted=counted)
    assert_warning(caplog.text, "numbered-from-zero", "batch 3,", f"numbers {number}:", "session.batch")
    assert slugs(caplog.text).count("numbered-from-zero") == 1


@pytest.mark.parametrize("name", RIGHT)
def test_correct_batch_counter_does_not_warn(name, stopped, caplog):
    for _unrelated in enumerate(zip(range(1), range(1), strict=True)):
        stopped.run(counted=RIGHT[name])
    assert "numbered-from-zero" not in slugs(caplog.text)
