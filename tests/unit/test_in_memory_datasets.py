"""In-memory data sets and the augmentation of their samples."""

import json
import os
import pickle

import numpy as np
import pytest
import torch

from messages import refused
from mnist_files import write_mnist
from slipway.base.environment import World
from slipway.checkpoint.header import Position
from trainer.config.settings import DataConfig, TrainConfig
from trainer.data.augment import crop_flip
from trainer.data.base import InMemoryDataset, channel_statistics
from trainer.data.loader import NO_LABEL, Loader
from trainer.data.sets import open_data
from trainer.data.sets.digits import FILE
from trainer.data.sets.holdout import stratified_split
from trainer.data.training_batches import TrainingBatches, recorded
from trainer.model.torchvision_on_cpu import import_torchvision
from trainer.parallel.device import CPU

ALMOST_ONE = np.nextafter(np.float32(1), np.float32(0))


def image_facts(count, channels=1, height=8, width=8):
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, channels, height, width), dtype=np.uint8))


class TestDigits:
    def test_digits_file_matches_published_data(self):
        with np.load(FILE) as arrays:
            pixels, labels = arrays["images"], arrays["labels"]
        assert pixels.shape == (1797, 8, 8)
        # Sums of load_digits() of scikit-learn 1.9.1: of all pixels, of each row of pixels, of images by class.
        assert pixels.sum() == 561718
        assert pixels.sum((0, 2)).tolist() == [65530, 80453, 65129, 72207, 73737, 63065, 71636, 69961]
        assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]

    def test_each_digit_is_in_exactly_one_split(self):
        train, test = open_data(DataConfig())
        with np.load(FILE) as arrays:
            expected = sorted(map(bytes, arrays["images"]))
        images = torch.cat([train.images, test.images])[:, 0]
        assert images.dtype == torch.uint8
        assert sorted(map(bytes, (images // 15).numpy())) == expected

    def test_one_fifth_of_each_class_is_held_out(self):
        train, test = open_data(DataConfig())
        assert len(test) == 359
        held_out, all_of_them = test.labels.bincount(), torch.cat([train.labels, test.labels]).bincount()
        assert len(all_of_them) == 10
        assert ((held_out - all_of_them / 5).abs() <= 1).all()

    def test_channel_statistics_come_from_training_split(self):
        train, test = open_data(DataConfig())
        for part in (train, test):
            assert all(map(torch.equal, part.mean_std, channel_statistics(train.images)))

    def test_only_training_split_is_augmented(self):
        train, test = open_data(DataConfig(crop_padding=1))
        assert (train.draws, test.draws) == (3, 0)

    def test_split_seed_changes_held_out_samples(self):
        first, again, other = (open_data(DataConfig(split_seed=seed)).validation.images for seed in (0, 0, 1))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


class TestSplit:
    def test_splits_are_sorted_and_cover_all_samples(self):
        labels = torch.arange(100) % 4
        train, test = stratified_split(labels, fraction=0.25, seed=0)
        assert test.tolist() == sorted(test.tolist())
        assert train.tolist() == sorted(train.tolist())
        assert sorted(train.tolist() + test.tolist()) == list(range(100))
        assert labels[test].bincount().tolist() == [6, 6, 6, 6]

    @pytest.mark.parametrize("fraction", [0.001, 0.999])
    def test_each_class_is_in_both_splits(self, fraction):
        labels = torch.tensor([0, 0, 2, 2, 2])
        train, test = stratified_split(labels, fraction=fraction, seed=0)
        assert set(labels[train].tolist()) == set(labels[test].tolist()) == {0, 2}

    def test_class_with_one_sample_is_refused(self):
        with refused("class-too-small", "val_fraction=0.5", "class 1 ") as error:
            stratified_split(torch.tensor([0, 0, 0, 0, 1]), fraction=0.5, seed=0)
        assert "\n" not in str(error.value)


class TestMnist:
    def test_both_splits_are_read_from_idx_files(self, tmp_path):
        raw = write_mnist(tmp_path, train=6, test=3)
        train, test = open_data(DataConfig(dataset="mnist", data_dir=str(tmp_path)))
        for part, name in ((train, "train"), (test, "t10k")):
            pixels = np.fromfile(raw / f"{name}-images-idx3-ubyte", np.uint8, offset=16)
            assert part.images.numpy().tobytes() == pixels.tobytes()
        assert train.labels.tolist() == [0, 1, 2, 3, 4, 5]
        assert test.labels.tolist() == [0, 1, 2]
        assert train.labels.dtype == torch.int64
        assert len(train.classes) == 10
        assert train.shape == (1, 28, 28)

    @pytest.mark.parametrize("kept", [0, 3, 10, 500])
    def test_truncated_mnist_file_is_refused(self, tmp_path, kept):
        os.truncate(write_mnist(tmp_path, train=6, test=3) / "train-images-idx3-ubyte", kept)
        with refused("no-data", "MNIST", repr(str(tmp_path))) as error:
            open_data(DataConfig(dataset="mnist", data_dir=str(tmp_path)))
        assert "\n" not in str(error.value)


class TestCifar10:
    def test_cifar10_rows_are_decoded_to_colour_images(self, tmp_path, monkeypatch):
        rows = image_facts(4, 3, 32, 32)
        folder = tmp_path / "cifar-10-batches-py"
        folder.mkdir()
        batch = {"data": rows.flatten(1).numpy(), "labels": [3, 1, 2, 0]}
        (folder / "some_batch").write_bytes(pickle.dumps(batch))
        (folder / "meta").write_bytes(pickle.dumps({"names": ["a", "b", "c", "d"]}))
        # torchvision checks the files by MD5, so these need another list
        cifar = import_torchvision().datasets.CIFAR10
        monkeypatch.setattr(cifar, "train_list", [["some_batch", None]])
        monkeypatch.setattr(cifar, "test_list", [["some_batch", None]])
        monkeypatch.setattr(cifar, "meta", {"filename": "meta", "key": "names", "md5": None})
        train, test = open_data(DataConfig(dataset="cifar10", data_dir=str(tmp_path)))
        assert torch.equal(train.images, rows)
        assert torch.equal(test.images, rows)
        assert train.labels.tolist() == [3, 1, 2, 0]
        assert train.classes == ("a", "b", "c", "d")
        assert train.mean_std[0].shape == (3,)


@pytest.mark.parametrize(("dataset", "name"), [("mnist", "MNIST"), ("cifar10", "CIFAR10")])
def test_missing_data_is_refused_and_flags_suggested(tmp_path, dataset, name):
    with refused("no-data", name, repr(str(tmp_path)), "--download", "--data-dir") as error:
        open_data(DataConfig(dataset=dataset, data_dir=str(tmp_path)))
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 16, 16), (4, 2, 2)])
def test_synthetic_images_have_configured_shape_and_count(shape):
    train, test = open_data(
        DataConfig(dataset="synthetic", synthetic_shape=shape, synthetic_samples=1000, synthetic_classes=7)
    )
    fetched = train.fetch(np.array([0, 255, 256, 999]), None)
    assert (len(train), len(test), len(train.classes)) == (1000, 125, 7)
    assert (fetched.images.shape, fetched.images.dtype) == ((4, *shape), torch.uint8)
    assert set(train.labels.tolist()) == set(range(7))
    assert torch.equal(fetched.images[0], fetched.images[2]), "of 256 images, shown in turn"
    assert not torch.equal(fetched.images[0], fetched.images[1])
    assert all(value.isfinite().all() for value in train.mean_std)


def test_channel_statistics_match_mean_and_std_per_channel():
    images = image_facts(10, 3)
    mean, std = channel_statistics(images)
    for channel in range(3):
        values = images[:, channel].numpy() / 255
        assert mean[channel].item() == pytest.approx(values.mean())
        assert std[channel].item() == pytest.approx(values.std(ddof=1))


class TestCropAndFlip:
    @staticmethod
    def one_by_one(images, draws, *, padding, flip):
        """Apply the same to each sample, in simple code."""
        results = []
        for image, (vertical, horizontal, mirror) in zip(images.numpy(), draws.numpy(), strict=True):
            _, height, width = image.shape
            padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
            top, left = (int(draw * np.float32(2 * padding + 1)) for draw in (vertical, horizontal))
            crop = padded[:, top : top + height, left : left + width]
            results.append(crop[:, :, ::-1] if flip and mirror <= 0.5 else crop)
        return torch.from_numpy(np.stack(results))

    @pytest.mark.parametrize("padding", [0, 1, 4, 6])
    @pytest.mark.parametrize("flip", [False, True])
    @pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 9)])
    def test_batched_crop_and_flip_matches_per_sample_result(self, padding, flip, shape):
        images = image_facts(64, *shape)
        draws = torch.from_numpy(np.random.default_rng(1).random((64, 3), dtype=np.float32))
        draws[:2] = torch.tensor([[0.0], [ALMOST_ONE]])  # the largest shifts
        batch = crop_flip(images, draws, padding=padding, flip=flip)
        assert (batch.shape, batch.dtype) == (images.shape, torch.uint8)
        assert torch.equal(batch, self.one_by_one(images, draws, padding=padding, flip=flip))


class TestFeed:
    DATASET = InMemoryDataset(
        image_facts(50, 3),
        torch.arange(50),
        tuple(map(str, range(50))),
        channel_statistics(image_facts(50, 3)),
        2,
        flip=True,
    )

    def training_batches(self, world, **train):
        loader = Loader(self.DATASET, workers=0, device=CPU, warn=pytest.fail)
        return TrainingBatches(loader, TrainConfig(**train), world)

    def by_id(self, *, epoch=0, seed=0, start=0, steps=None, rank=0, size=1, **train):
        """Return the samples of one rank, by id."""
        batches = self.training_batches(World(rank=rank, size=size), seed=seed, **train)
        fed = {}
        for batch in batches.of_epoch(epoch=epoch, start=start, steps=steps):
            if batch.micro.counted:
                assert batch.labels.tolist() == batch.micro.ids.tolist()
                fed |= {
                    int(sample): bytes(image.numpy())
                    for sample, image in zip(batch.micro.ids, batch.images, strict=True)
                }
        return fed

    def test_augmentation_is_independent_of_batch_size(self):
        reference = self.by_id(batch_size=50)
        assert len(reference) == 50
        assert self.by_id(batch_size=7) == reference
        assert self.by_id(batch_size=16, grad_accum_steps=3) == reference

    def test_augmentation_is_independent_of_rank_and_world_size(self):
        together = self.by_id(batch_size=8, rank=0, size=3) | self.by_id(batch_size=8, rank=1, size=3)
        together |= self.by_id(batch_size=8, rank=2, size=3)
        assert together == self.by_id(batch_size=50)

    def test_augmentation_is_unchanged_after_resuming_within_epoch(self):
        whole, rest = self.by_id(batch_size=8), self.by_id(batch_size=8, start=24)
        assert len(rest) == 26
        assert rest.items() <= whole.items()

    def test_augmentation_depends_on_seed_and_epoch(self):
        reference = self.by_id(batch_size=50)
        assert self.by_id(batch_size=50, epoch=1) != reference
        assert self.by_id(batch_size=50, seed=1) != reference

    def test_step_limit_ends_epoch_early(self):
        assert len(self.by_id(batch_size=8, steps=2)) == 16
        assert self.by_id(batch_size=8, steps=0) == {}
        assert len(self.by_id(batch_size=8, start=48, steps=5)) == 2

    def test_padding_samples_have_no_label(self):
        for batch in self.training_batches(World(2, 3), batch_size=2).of_epoch(epoch=0, start=0, steps=2):
            assert (batch.micro.counted, batch.labels.tolist()) == (False, [NO_LABEL] * 2)
        assert torch.equal(self.DATASET.labels, torch.arange(50))

    def test_sample_ids_of_each_step_are_recorded(self, tmp_path):
        batches = self.training_batches(World())
        path = tmp_path / "samples.jsonl"
        batches = list(
            recorded(batches.of_epoch(epoch=0, start=0, steps=None), path, position=Position(step=7, epoch=2))
        )
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert records == [{"step": 7, "epoch": 2, "ids": batches[0].micro.ids.tolist()}]
