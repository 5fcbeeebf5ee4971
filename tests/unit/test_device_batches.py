"""Batches on a device: the same in any order of reading, here with the CPU as the device."""

import itertools
import threading
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from slipway.base.environment import World
from slipway.data.device_batches import on_device
from trainer.config.settings import DataConfig, TrainConfig
from trainer.data import loader as loading
from trainer.data.loader import fits
from trainer.data.sets import open_data
from trainer.data.training_batches import TrainingBatches

CPU = torch.device("cpu")
WAYS = [{"ahead": 0}, {"ahead": 1}, {"ahead": 3}, {"thread": True}, {"ahead": 2, "thread": True}]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


class Movable:
    def __init__(self, place=None):
        self.place = place

    def to(self, device):
        return Movable(device)


@every_way
def test_batches_keep_order_structure_and_values(way):
    made = [{"x": torch.full((2,), n), "rest": [Pair(torch.tensor(n), "text"), (n, None)]} for n in range(7)]
    found = list(on_device(iter(made), CPU, **way))
    assert str(found) == str(made)
    assert type(found[0]["rest"][0]) is Pair


@every_way
def test_objects_are_moved_by_their_own_method(way):
    sequence = pack_sequence([torch.ones(3), torch.ones(2)])
    ((moved, packed, array),) = on_device([(Movable(), sequence, np.arange(3))], CPU, **way)
    assert moved.place == CPU
    assert type(packed) is PackedSequence
    assert torch.equal(packed.data, sequence.data)
    assert array.tolist() == [0, 1, 2]


@every_way
def test_tensors_are_on_the_device(way):
    found = list(on_device([(torch.ones(2), [torch.ones(1)])], torch.device("meta"), **way))
    assert {tensor.device.type for tensor in (found[0][0], found[0][1][0])} == {"meta"}


@every_way
def test_no_more_batches_are_read_than_asked_for(way):
    read = itertools.count()
    found = on_device((next(read) for _ in range(9)), CPU, **way)
    for number in range(3):
        assert next(found) == number
    found.close()
    most = 3 + (max(1, way.get("ahead", 0)) if "thread" in way else way["ahead"])
    assert 3 <= next(read) <= most


@every_way
def test_error_comes_after_the_batches_before_it(way):
    def failing():
        yield from range(4)
        raise OSError(5, "bad disk")

    found = on_device(failing(), CPU, **way)
    assert [next(found) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(OSError, match="bad disk"):
        next(found)


def test_thread_ends_with_the_iterator():
    before = threading.active_count()
    found = on_device(iter(range(100)), CPU, ahead=2, thread=True)
    assert next(found) == 0
    assert threading.active_count() == before + 1
    found.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("augmentation", [{}, {"crop_padding": 2, "flip": True}], ids=["plain", "crop and flip"])
@pytest.mark.parametrize("ahead", [1, 2])
def test_trainer_reads_same_batches_ahead_by_thread(ahead, augmentation, monkeypatch):
    train = open_data(DataConfig(dataset="digits", **augmentation)).train

    def epoch(start=0):
        batches = TrainingBatches(train, TrainConfig(batch_size=100), World(1, 2), workers=0, device=CPU, warn=print)
        found = batches.of_epoch(epoch=3, start=start, steps=None)
        return [(batch.images.tolist(), batch.labels.tolist(), batch.micro.ids.tolist()) for batch in found]

    whole = epoch()
    monkeypatch.setattr(loading, "AHEAD", {"cpu": ahead})
    assert epoch() == whole
    assert epoch(start=500) == whole[5:]


@pytest.mark.parametrize("padding", [0, 2])
def test_dataset_on_device_gathers_and_augments_same_images(padding):
    dataset = open_data(DataConfig(dataset="digits", crop_padding=padding, flip=padding > 0)).train
    ids = np.array([5, 0, 7, 5])
    draws = np.random.default_rng(0).random((4, 3), dtype=np.float32) if padding else None
    host = dataset.fetch(ids, draws).images
    moved = dataset.to(CPU).fetch(ids, draws).images
    assert torch.equal(host, moved)
    elsewhere = dataset.to(torch.device("meta")).fetch(ids, draws).images
    assert (elsewhere.device.type, elsewhere.shape, elsewhere.dtype) == ("meta", host.shape, torch.uint8)


def test_only_a_gpu_with_enough_memory_holds_a_dataset():
    dataset = open_data(DataConfig(dataset="digits")).train
    assert not fits(dataset, CPU, 0.9)
