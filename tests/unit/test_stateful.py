"""Components of a checkpoint: saved and restored on one rank and on several."""

from collections import Counter, OrderedDict, defaultdict, deque
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from messages import refused
from ranks import on_ranks
from slipway.checkpoint import stateful
from slipway.checkpoint.format import read_checkpoint, write_checkpoint
from slipway.checkpoint.header import Header, Metric, Position
from slipway.checkpoint.stateful import join, split
from slipway.dist.communicator import Alone

HEADER = Header(Position(step=7, samples=3), Metric("loss", 0.25, maximize=False), {"seed": 4})


class Component:
    """Any object with a state."""

    def __init__(self, state=None):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state_dict):
        self.state = state_dict


def through_disk(checkpoint, folder):
    write_checkpoint(folder / "step_00000007", checkpoint)
    return read_checkpoint(folder / "step_00000007")


def step(model, optimizer, scheduler, count):
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        scheduler.step()


def test_restored_model_optimizer_and_scheduler_continue_bitwise(tmp_path):
    torch.manual_seed(0)
    first = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(first.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
    step(first, optimizer, scheduler, 3)
    parts = {"model": first, "optimizer": optimizer, "scheduler": scheduler}
    found = through_disk(stateful.capture(parts, HEADER), tmp_path)

    second = nn.Linear(3, 2)
    other = torch.optim.AdamW(second.parameters(), lr=0.9)
    new = {"optimizer": other, "scheduler": torch.optim.lr_scheduler.OneCycleLR(other, max_lr=0.5, total_steps=20)}
    restored = stateful.restore({"model": second, **new}, found, Alone(torch.device("cpu")))
    assert restored == (found.header, [])
    assert restored.header[:3] == HEADER[:3]
    for model, parts in ((first, (optimizer, scheduler)), (second, tuple(new.values()))):
        step(model, *parts, 2)
    assert torch.equal(first.weight, second.weight)
    assert scheduler.get_last_lr() == new["scheduler"].get_last_lr()


class Pair(NamedTuple):
    first: object


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"a": torch.arange(3), "b/c": torch.zeros(())},
        {"scale": 65536.0, "tracker": 0, "on": True, "name": "é", "none": None, "huge": 2**80, "small": 5e-324},
        {1: {"x": torch.ones(2)}, "1": {"x": torch.zeros(2)}, "1/'x'": torch.full((2,), 3)},
        {"groups": [{"betas": (0.9, 0.999), "params": [0, 1]}, []], "empty": {}, "pair": ()},
        {"tensor": "not one", "dict": [["a", "b"]], "list": {"list": [1]}},
        {"inf": float("inf"), "minus": float("-inf")},
        {"bytes": b"\x00a", "numpy": np.float64(0.1), "array": np.arange(6, dtype="uint32").reshape(2, 3)},
        {"milestones": Counter([3, 3, 7]), "ordered": OrderedDict(b=1, a=torch.ones(1))},
        {"sets": [{(1, "a")}, set(), frozenset({b"b"})], "last": deque([1, torch.ones(2)], maxlen=2), "all": deque()},
        {"lists": defaultdict(list, a=[1]), "none": defaultdict(None, a=1), "pair": Pair([2, (Pair(3),)])},
    ],
    ids=str,
)
def test_any_plain_state_is_restored_unchanged(state, tmp_path):
    parts = {"part": Component(state)}
    on_disk = through_disk(stateful.capture(parts, HEADER), tmp_path)
    again = Component("untouched")
    missing = stateful.restore({"part": again}, on_disk, Alone(torch.device("cpu"))).missing
    assert (str(again.state), missing) == (str(state), [])
    assert "other" in stateful.restore({"other": again}, on_disk, Alone(torch.device("cpu"))).missing


@pytest.mark.parametrize(
    "state",
    [
        *({"a": object()}, {"a": {(1, 2): 3}}, {"a": [{1j, 2}]}, {"a": 1j}, {"a": torch.Size([2])}),
        *({"a": NamedTuple("Local", [("x", int)])(1)}, {"a": {torch.ones(1)}}),
        *({"a": defaultdict(lambda: 0)}, {"a": np.array(["text"])}),
    ],
)
def test_unsavable_state_is_refused_with_its_key(state):
    with refused("unsavable-state", "part/'a'"):
        split(state, "part")


def test_unknown_encoded_type_of_newer_version_raises():
    with pytest.raises(ValueError, match="frozendict"):
        join({}, {"dict": [["a", {"frozendict": [1]}]]})
    with pytest.raises(ValueError, match="Pair"):
        join({}, {"dict": [["a", {"namedtuple": [[1], "elsewhere", "Pair"]}]]})


def test_set_encoding_does_not_depend_on_insertion_order():
    colliding = [8, 0]
    one, two = {*colliding}, {*reversed(colliding)}
    assert [*one] != [*two]
    assert str(split({"a": one}, "part")) == str(split({"a": two}, "part"))


class Versioned(nn.Linear):
    """A module that reads its version from the state, as torchvision's MNASNet does."""

    _version = 2

    def _load_from_state_dict(self, state, prefix, metadata, *rest):
        assert metadata.get("version") == 2
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def test_module_that_reads_version_metadata_is_restored(tmp_path):
    found = through_disk(stateful.capture({"model": Versioned(3, 2)}, HEADER), tmp_path)
    again = Versioned(3, 2)
    stateful.restore({"model": again}, found, Alone(torch.device("cpu")))
    assert torch.equal(again.weight, found.tensors["model"]["weight"])


def test_restored_tensors_are_copies(tmp_path):
    found = through_disk(stateful.capture({"a": Component({"step": torch.zeros(())})}, HEADER), tmp_path)
    part = Component()
    stateful.restore({"a": part}, found, Alone(torch.device("cpu")))
    assert part.state["step"].data_ptr() != found.tensors["a"]["step"].data_ptr()


def test_state_read_by_rank_0_is_restored_on_all_ranks():
    state = {"w": torch.arange(4, dtype=torch.float64), "n": torch.tensor(3)}
    found = stateful.capture({"a": Component(state), "b": Component({"lr": [0.1, (2,)]})}, HEADER)

    def action(comm):
        parts = {name: Component() for name in "abc"}
        restored = stateful.restore(parts, found if comm.world.is_root else None, comm)
        return restored, {name: part.state for name, part in parts.items()}

    for (header, missing), states in on_ranks(3, action):
        assert (header, missing) == (found.header, ["c"])
        assert (str(states["a"]), states["b"], states["c"]) == (str(state), {"lr": [0.1, (2,)]}, None)


def test_restore_returns_none_on_all_ranks_without_checkpoint():
    assert on_ranks(2, lambda comm: stateful.restore({"a": Component()}, None, comm)) == [None, None]
