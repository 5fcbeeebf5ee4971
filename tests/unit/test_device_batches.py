"""Batches on a device: the same in any order of reading, here with the CPU as the device."""

import itertools
import threading
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from slipway.base.environment import World
from slipway.data import device_batches
from slipway.data.device_batches import on_device, to_device
from trainer.config.settings import DataConfig, TrainConfig
from trainer.data.loader import Loader, fits
from trainer.data.sets import open_data
from trainer.data.training_batches import TrainingBatches

CPU = torch.device("cpu")
WAYS = {"in turn": (0, False), "1 ahead": (1, False), "3 ahead": (3, False), "thread": (1, True), "2 ahead": (2, True)}


@pytest.fixture(params=WAYS)
def ahead(request, monkeypatch):
    """Read as many batches ahead for each type of device; return their number."""
    count, _ = WAYS[request.param]
    for kind in ("cpu", "meta"):
        monkeypatch.setitem(device_batches.AHEAD, kind, count)
    return count


@pytest.fixture
def way(ahead, request):
    return {"ahead": ahead > 0, "thread": WAYS[request.node.callspec.params["ahead"]][1]}


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


class Movable:
    def __init__(self, place=None):
        self.place = place

    def to(self, device):
        return Movable(device)


def test_batches_keep_order_structure_and_values(way):
    made = [{"x": torch.full((2,), n), "rest": [Pair(torch.tensor(n), "text"), (n, None)]} for n in range(7)]
    found = list(on_device(iter(made), CPU, **way))
    assert str(found) == str(made)
    assert type(found[0]["rest"][0]) is Pair


def test_objects_are_moved_by_their_own_method(way):
    sequence = pack_sequence([torch.ones(3), torch.ones(2)])
    ((moved, packed, array),) = on_device([(Movable(), sequence, np.arange(3))], CPU, **way)
    assert moved.place == CPU
    assert type(packed) is PackedSequence
    assert torch.equal(packed.data, sequence.data)
    assert array.tolist() == [0, 1, 2]


def test_tensors_are_on_the_device(way):
    found = list(on_device([(torch.ones(2), [torch.ones(1)])], torch.device("meta"), **way))
    assert {tensor.device.type for tensor in (found[0][0], found[0][1][0])} == {"meta"}


def test_no_more_batches_are_read_than_asked_for(way, ahead):
    read = itertools.count()
    found = on_device((next(read) for _ in range(9)), CPU, **way)
    for number in range(3):
        assert next(found) == number
    found.close()
    assert 3 <= next(read) <= 3 + ahead


def test_error_comes_after_the_batches_before_it(way):
    def failing():
        yield from range(4)
        raise OSError(5, "bad disk")

    found = on_device(failing(), CPU, **way)
    assert [next(found) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(OSError, match="bad disk"):
        next(found)


def test_thread_ends_with_the_iterator(monkeypatch):
    before = threading.active_count()
    monkeypatch.setitem(device_batches.AHEAD, "cpu", 2)
    found = on_device(iter(range(100)), CPU, ahead=True, thread=True)
    assert next(found) == 0
    assert threading.active_count() == before + 1
    found.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("augmentation", [{}, {"crop_padding": 2, "flip": True}], ids=["plain", "crop and flip"])
@pytest.mark.parametrize("count", [1, 2])
def test_trainer_reads_same_batches_ahead_by_thread(count, augmentation, monkeypatch):
    train = open_data(DataConfig(dataset="digits", **augmentation)).train

    def epoch(start=0):
        batches = TrainingBatches(
            Loader(train, workers=0, device=CPU, warn=print), TrainConfig(batch_size=100), World(1, 2)
        )
        found = batches.of_epoch(epoch=3, start=start, steps=None)
        return [(batch.images.tolist(), batch.labels.tolist(), batch.micro.ids.tolist()) for batch in found]

    whole = epoch()
    monkeypatch.setitem(device_batches.AHEAD, "cpu", count)
    assert epoch() == whole
    assert epoch(start=500) == whole[5:]


@pytest.mark.parametrize("padding", [0, 2])
def test_dataset_on_device_gathers_and_augments_there(padding):
    """The meta device refuses to read data, so the images never come to the host."""
    dataset = open_data(DataConfig(dataset="digits", crop_padding=padding, flip=padding > 0)).train
    draws = np.zeros((4, 3), dtype=np.float32) if padding else None
    found = dataset.to(torch.device("meta")).fetch(np.array([5, 0, 7, 5]), draws).images
    assert (found.device.type, found.shape, found.dtype) == ("meta", (4, 1, 8, 8), torch.uint8)


def test_only_a_gpu_with_enough_memory_holds_a_dataset(monkeypatch):
    dataset = open_data(DataConfig(dataset="digits")).train
    free = 10 * dataset.images.nbytes
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 2 * free))
    gpu = torch.device("cuda")
    assert [fits(dataset, gpu, fraction) for fraction in (0.0, 0.09, 0.1, 0.5)] == [False, False, True, True]
    assert not fits(dataset, CPU, 0.5)


@pytest.mark.parametrize(
    ("source", "target", "asynchronous"), [("cpu", "cuda", True), ("cuda", "cpu", False), ("cpu", "mps", False)]
)
def test_only_copies_to_a_gpu_are_asynchronous(source, target, asynchronous):
    """To other devices nothing would wait for them."""
    tensor = mock.Mock(device=torch.device(source))
    to_device(tensor, torch.device(target))
    (call,) = tensor.to.call_args_list
    assert call.kwargs.get("non_blocking", False) is asynchronous


def test_containers_and_objects_that_cannot_be_copied_ahead_are_moved_or_kept(way):
    class InPlace:
        def to(self, device):
            self.place = device

    sparse, nested = (
        torch.eye(3).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    )
    wide = torch.ones(1).expand(4)
    kept = InPlace()
    ((a, b, c, d, kind),) = on_device([(sparse, nested, wide, kept, torch.Tensor)], CPU, **way)
    assert torch.equal(a.to_dense(), torch.eye(3))
    assert b.is_nested
    assert torch.equal(c, wide)
    assert d is kept
    assert kept.place == CPU
    assert kind is torch.Tensor
