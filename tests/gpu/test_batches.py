"""Batches on the device: bitwise the same from the host, copied ahead, and from a data set that the device holds."""

import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from slipway.base.environment import World
from slipway.data import device_batches
from slipway.data.feed import Feed
from slipway.script.arguments import as_device
from trainer.config.settings import DataConfig, TrainConfig
from trainer.data.loader import Loader
from trainer.data.sets import open_data
from trainer.data.training_batches import TrainingBatches

AUGMENTED = DataConfig(dataset="digits", crop_padding=2, flip=True)
WAYS = {"in its place": (0, 0.0), "ahead": (1, 0.0), "two ahead": (2, 0.0), "resident": (0, 0.9)}
"""Batches copied ahead, and the fraction of the free memory for the data set."""


def work_on(place):
    """Return a matrix whose product with itself takes about 1 ms on a GPU."""
    edge = 2000 if place.type == "cuda" else 2
    return torch.zeros(edge, edge, device=place)


def delay_copies(place):
    """Let the next copies to a GPU begin about 10 ms later."""
    if place and place.type == "cuda":
        with torch.cuda.stream(device_batches._copy_stream(place)):
            torch.cuda._sleep(20_000_000)


@pytest.mark.parametrize("way", WAYS)
def test_trainer_gets_same_batches_in_each_way(way, device, monkeypatch, record):
    """Each batch is read after work that delays the step's stream, and copied after a delay of its stream."""
    train = open_data(AUGMENTED).train
    ahead, fraction = WAYS[way]
    monkeypatch.setattr(device_batches, "AHEAD", {device: ahead} if ahead else {})
    place = torch.device(device, 0) if device == "cuda" else torch.device(device)
    loader = Loader(train, workers=0, device=place, warn=pytest.fail, memory_fraction=fraction)
    batches = TrainingBatches(loader, TrainConfig(batch_size=100), World())
    assert (loader.resident_bytes > 0) == (way == "resident" and device == "cuda")
    busy = work_on(place)
    began, found = time.perf_counter(), []
    for batch in batches.of_epoch(epoch=1, start=0, steps=None):
        busy = busy @ busy
        delay_copies(place)
        found.append((batch.images.to(place).clone(), batch.labels.to(place).clone(), batch.micro.ids))
    record(ms=1e3 * (time.perf_counter() - began))
    monkeypatch.setattr(device_batches, "AHEAD", {})
    on_host = Loader(train, workers=0, device=torch.device("cpu"), warn=pytest.fail)
    host = TrainingBatches(on_host, TrainConfig(batch_size=100), World())
    for (images, labels, ids), expected in zip(found, host.of_epoch(epoch=1, start=0, steps=None), strict=True):
        assert torch.equal(images.cpu(), expected.images)
        assert torch.equal(labels.cpu(), expected.labels)
        assert ids.tolist() == expected.micro.ids.tolist()


class Drawn(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"image": torch.rand(3, 64, 64) + index, "pair": (index, "text")}


@pytest.mark.parametrize("workers", [0, 2])
def test_session_gets_same_batches_on_device(workers, device):
    def read(place):
        torch.manual_seed(3)
        feed = Feed(World(), seed=5, repeat_epoch=False)
        batches = feed.begin(DataLoader(Drawn(), 4, shuffle=True, num_workers=workers), epoch=2, device=place).batches
        busy, found = work_on(torch.device(device)), []
        for batch in batches:
            busy = busy @ busy
            delay_copies(place)
            index, text = batch["pair"]
            found.append((batch["image"].clone(), type(batch["pair"]), index.tolist(), text))
        feed.close()
        return found

    for (image, *rest), (expected, *others) in zip(read(as_device("batches", device)), read(None), strict=True):
        assert image.device.type == device
        assert torch.equal(image.cpu(), expected)
        assert rest == others
