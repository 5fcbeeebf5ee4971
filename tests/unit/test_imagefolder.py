"""Folders of image files: what is found, how it is decoded, and what becomes of a corrupt one."""

import os
import re
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import Resize

from messages import assert_names, assert_warning, refused
from slipway.packed import SUFFIXES
from slipway.world import World
from trainer.config import Config, DataConfig, TrainConfig
from trainer.data import open_data
from trainer.data.feed import Feed
from trainer.data.imagefolder import ImageFolder, centre_box, random_box
from trainer.data.loader import NO_LABEL, Loader
from trainer.data.sampler import MicroBatch
from trainer.normalise import normalisation

RED, BLUE = (250, 10, 20), (5, 30, 240)


def save_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)


def flat(colour, height=24, width=32):
    return np.full((height, width, 3), colour)


def noise(seed, height=24, width=32):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3))


def fill(folder, *, classes=("cat", "dog"), count=4, suffix=".png"):
    """Write ``count`` images of each class."""
    for label, name in enumerate(classes):
        for number in range(count):
            save_image(folder / name / f"{number}{suffix}", noise(10 * label + number))


def opened(folder, **data):
    return open_data(DataConfig(dataset="imagefolder", data_dir=str(folder), image_size=16, **data))


def whole(dataset):
    """Return a plan that reads all of ``dataset`` in micro-batches of three."""
    ids = np.arange(len(dataset))
    return [MicroBatch(ids[begin : begin + 3], True, 3) for begin in range(0, len(ids), 3)]


def paths_of(part):
    return [Path(part.describe(number)) for number in range(len(part))]


class TestLayout:
    def test_train_and_val_are_the_two_parts(self, tmp_path):
        fill(tmp_path / "train", count=3)
        fill(tmp_path / "val", count=2, suffix=".jpg")
        train, test = opened(tmp_path)
        assert train.classes == test.classes == ("cat", "dog")
        assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert test.labels.tolist() == [0, 0, 1, 1]
        assert test.describe(2) == str(tmp_path / "val" / "dog" / "0.jpg")
        assert train.shape == (3, 16, 16)

    def test_one_folder_is_split_by_class(self, tmp_path):
        fill(tmp_path, count=10)
        train, test = opened(tmp_path, val_fraction=0.3)
        assert train.labels.bincount().tolist() == [7, 7]
        assert test.labels.bincount().tolist() == [3, 3]
        assert sorted(paths_of(train) + paths_of(test)) == sorted(tmp_path.rglob("*.png"))
        for part in (train, test):
            assert [part.classes[label] for label in part.labels] == [path.parent.name for path in paths_of(part)]

    def test_only_images_count_at_any_depth_in_any_case(self, tmp_path):
        fill(tmp_path, count=4)
        (tmp_path / "cat" / "notes.txt").write_text("no image")
        (tmp_path / "stray.png").write_text("in no class")
        save_image(tmp_path / "cat" / "more" / "deep.JPG", noise(0))
        train, test = opened(tmp_path, val_fraction=0.5)
        names = [path.name for path in paths_of(train) + paths_of(test)]
        assert len(names) == 9
        assert "deep.JPG" in names

    @pytest.mark.parametrize("side", ["train", "val"])
    def test_a_class_that_stands_on_one_side_only_is_named(self, tmp_path, side):
        fill(tmp_path / "train")
        fill(tmp_path / "val")
        fill(tmp_path / side, classes=["emu"])
        with refused("classes-differ", tmp_path, "emu"):
            opened(tmp_path)

    @pytest.mark.parametrize("part", ["", "train"])
    def test_a_class_whose_name_is_not_utf8_is_refused(self, tmp_path, part):
        for side in {part, "val" if part else ""}:
            fill(tmp_path / side, classes=["emu", os.fsdecode(b"caf\xe9")])
        with refused("bad-path", tmp_path / part, r"'caf\udce9'", "UTF-8"):
            opened(tmp_path)

    def test_an_empty_class_is_named_with_what_counts_as_image(self, tmp_path):
        fill(tmp_path)
        (tmp_path / "emu").mkdir()
        with refused("no-images", tmp_path, "emu", ".jpeg"):
            opened(tmp_path)

    @pytest.mark.parametrize("name", [".ipynb_checkpoints", "__MACOSX", "@eaDir", "lost+found"])
    @pytest.mark.parametrize("parent", ["", "train", "cat", "train/cat"])
    def test_folders_of_other_programs_are_left_out_by_name(self, tmp_path, name, parent, caplog):
        caplog.set_level("INFO", "trainer")
        for part in ("train", "val") if parent.startswith("train") else ("",):
            fill(tmp_path / part)
        save_image(tmp_path / parent / name / "0.png", noise(1))
        train, validation = opened(tmp_path)
        assert train.classes == validation.classes == ("cat", "dog")
        assert not any(name in str(path) for path in paths_of(train) + paths_of(validation))
        assert_names(caplog.text, str(Path(parent, name)))

    def test_a_class_of_one_image_is_named_by_its_folder(self, tmp_path):
        fill(tmp_path)
        save_image(tmp_path / "emu" / "0.png", noise(1))
        with refused("class-too-small", tmp_path / "emu"):
            opened(tmp_path)

    @pytest.mark.parametrize("target", ["gone", "emu"])
    def test_a_class_that_is_a_link_without_an_end_is_named(self, tmp_path, target):
        fill(tmp_path)
        (tmp_path / "emu").symlink_to(target)
        with refused("data-unreadable", tmp_path / "emu"):
            opened(tmp_path)

    def test_a_class_may_be_a_link_and_a_link_in_it_is_left_out_by_name(self, tmp_path, caplog):
        caplog.set_level("INFO", "trainer")
        fill(tmp_path / "else")
        fill(tmp_path / "data")
        (tmp_path / "data" / "emu").symlink_to(tmp_path / "else" / "dog")
        (tmp_path / "data" / "cat" / "more").symlink_to(tmp_path / "else" / "cat")
        parts = opened(tmp_path / "data")
        assert parts.train.classes == ("cat", "dog", "emu")
        assert sum(len(part) for part in parts) == 12
        assert_names(caplog.text, "cat/more")

    def test_a_folder_without_classes_is_refused(self, tmp_path):
        with refused("no-images", tmp_path):
            opened(tmp_path)

    def test_a_missing_folder_says_what_to_do(self, tmp_path):
        with refused("no-data", tmp_path / "gone", "--data-dir", "train/", "val/"):
            opened(tmp_path / "gone")

    def test_train_without_val_is_refused(self, tmp_path):
        fill(tmp_path / "train")
        with refused("no-data", tmp_path / "val"):
            opened(tmp_path)


class TestDecoding:
    @pytest.mark.parametrize("suffix", sorted(SUFFIXES))
    def test_every_format_is_read_as_colour_of_one_size(self, tmp_path, suffix):
        save_image(tmp_path / "red" / f"a{suffix}", flat(RED))
        save_image(tmp_path / "red" / f"b{suffix}", flat(RED, 9, 40))
        save_image(tmp_path / "red" / f"c{suffix}", flat(RED))
        train, test = opened(tmp_path, val_fraction=0.4)
        for part in (train, test):
            images, bad, _ = part.fetch(np.arange(len(part)), None)
            assert bad == []
            assert images.dtype == torch.uint8
            lossy = 4 if suffix in {".jpg", ".jpeg", ".webp"} else 0
            assert (images.float() - torch.tensor(RED).view(3, 1, 1)).abs().max() <= lossy

    @pytest.mark.parametrize(("mode", "expected"), [("L", [77, 77, 77]), ("RGBA", [77, 88, 99]), ("1", [255] * 3)])
    def test_grey_and_transparent_images_become_colour(self, tmp_path, mode, expected):
        colour = {"L": 77, "RGBA": (77, 88, 99, 10), "1": 1}[mode]
        for side in ("train", "val"):
            (tmp_path / side / "a").mkdir(parents=True)
            Image.new(mode, (20, 20), colour).save(tmp_path / side / "a" / "0.png")
        image = opened(tmp_path).train.fetch(np.array([0]), None).images[0]
        assert image[:, 8, 8].tolist() == expected

    def test_the_validation_crop_is_the_centre(self, tmp_path):
        pixels = flat(RED, 32, 96)
        pixels[:, 32:64] = BLUE
        for side in ("train", "val"):
            save_image(tmp_path / side / "a" / "0.png", pixels)
        image = opened(tmp_path).validation.fetch(np.array([0]), None).images[0]
        assert torch.equal(image, torch.tensor(BLUE, dtype=torch.uint8).view(3, 1, 1).expand(3, 16, 16))
        assert centre_box(96, 32) == (34, 2, 62, 30)

    def test_squash_takes_the_whole_image_as_torchvision_does(self, tmp_path):
        for side in ("train", "val"):
            save_image(tmp_path / side / "a" / "0.png", noise(0, 24, 30))
        resized = Resize((16, 16))(Image.open(tmp_path / "train" / "a" / "0.png"))
        for part in opened(tmp_path, resize="squash"):
            image = part.fetch(np.array([0]), None).images[0]
            assert np.array_equal(image.permute(1, 2, 0), np.array(resized))

    def test_without_normalisation_a_model_takes_values_from_0_to_1(self, tmp_path):
        for side in ("train", "val"):
            save_image(tmp_path / side / "a" / "0.png", noise(0))
        train = opened(tmp_path, normalise=False).train
        images = train.fetch(np.array([0]), None).images
        taken = normalisation(Config(), train.mean_std, torch.device("cpu"))(images)
        assert torch.allclose(taken, images / 255)

    def test_flip_mirrors_the_images_with_a_low_fifth_draw(self, tmp_path):
        pixels = flat(RED, 32, 32)
        pixels[:, 16:] = BLUE
        for side in ("train", "val"):
            save_image(tmp_path / side / "a" / "0.png", pixels)
        train = opened(tmp_path, flip=True).train
        draws = np.array([[0, 0, 0, 0, 0.3], [0, 0, 0, 0, 0.7]], dtype=np.float32)
        mirrored, kept = train.fetch(np.array([0, 0]), draws).images
        assert kept[:, 8, 2].tolist() == list(RED)
        assert torch.equal(mirrored, kept.flip(2))

    @pytest.mark.parametrize(("width", "height"), [(60, 40), (40, 60), (50, 50)])
    def test_random_boxes_lie_in_the_image_and_span_the_areas_promised(self, width, height):
        areas = []
        for draws in np.random.default_rng(0).random((2000, 5), dtype=np.float32):
            left, upper, right, lower = random_box(width, height, draws)
            assert 0 <= left < right <= width + 0.001
            assert 0 <= upper < lower <= height + 0.001
            areas.append((right - left) * (lower - upper) / (width * height))
        assert 0.08 <= min(areas) < 0.1
        assert 0.9 < max(areas) <= 1

    def test_random_boxes_are_placed_by_the_third_and_fourth_draw(self):
        left, upper, _, _ = random_box(60, 40, np.array([0.2, 0.5, 0, 0, 0], dtype=np.float32))
        assert (left, upper) == (0, 0)
        _, _, right, lower = random_box(60, 40, np.array([0.2, 0.5, 1, 1, 0], dtype=np.float32))
        assert (right, lower) == pytest.approx((60, 40))


class TestCorruptImages:
    @pytest.fixture
    def folder(self, tmp_path):
        """Write six images, of which numbers 1 and 4 of the training part are corrupt."""
        for side in ("train", "val"):
            fill(tmp_path / side, classes=["a"], count=6, suffix=".jpg")
        whole = (tmp_path / "train" / "a" / "1.jpg").read_bytes()
        (tmp_path / "train" / "a" / "1.jpg").write_bytes(whole[: len(whole) // 2])
        (tmp_path / "train" / "a" / "4.jpg").write_bytes(b"")
        return tmp_path

    def test_they_come_out_black_and_their_positions_are_told(self, folder):
        images, bad, _ = opened(folder).train.fetch(np.array([5, 4, 3, 1]), None)
        assert bad == [1, 3]
        assert images[[1, 3]].count_nonzero() == 0
        assert images[[0, 2]].count_nonzero() > 0

    @pytest.mark.parametrize("workers", [0, 2])
    def test_they_do_not_count_and_are_told_of_by_path(self, folder, workers):
        told = []
        train = opened(folder).train
        batches = list(Loader(train, workers=workers, pin_memory=False, warn=told.append).batches(whole(train)))
        assert [batch.labels.tolist() for batch in batches] == [[0, NO_LABEL, 0], [0, NO_LABEL, 0]]
        assert [batch.bad for batch in batches] == [1, 1]
        paths = [folder / "train" / "a" / name for name in ("1.jpg", "4.jpg")]
        for line, path in zip(told, paths, strict=True):
            assert_warning(line, "damaged-image", f"{path} (")

    def test_one_read_only_to_join_a_step_is_not_counted_twice(self, folder):
        told = []
        train = opened(folder).train
        (batch,) = Loader(train, workers=0, pin_memory=False, warn=told.append).batches(
            [MicroBatch(np.array([1]), False, 6)]
        )
        assert (batch.bad, batch.labels.tolist(), told) == (0, [NO_LABEL], [])

    def test_a_chunk_of_a_png_that_makes_no_sense_is_damage_too(self, tmp_path):
        for side in ("train", "val"):
            save_image(tmp_path / side / "a" / "0.png", noise(0, 300, 300))
        train = opened(tmp_path).train
        data = paths_of(train)[0].read_bytes()
        second = data.index(b"IDAT", data.index(b"IDAT") + 4)
        paths_of(train)[0].write_bytes(data[:second] + b"\0\0\0\0" + data[second + 4 :])
        with pytest.raises(SyntaxError), Image.open(paths_of(train)[0]) as image:  # which few would expect of a decoder
            image.load()
        assert train.fetch(np.array([0]), None).bad == [0]

    @pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp", ".tif", ".ppm"])
    @pytest.mark.filterwarnings("ignore")  # PIL's, of odd metadata
    def test_no_damage_of_any_format_raises(self, tmp_path, suffix):
        for side in ("train", "val"):
            fill(tmp_path / side, classes=["a"], count=1, suffix=suffix)
        train = opened(tmp_path).train
        path = paths_of(train)[0]
        data, generator = path.read_bytes(), np.random.default_rng(0)
        found = 0
        for _ in range(150):
            damaged = bytearray(data[: generator.integers(1, len(data) + 1)])
            for place in generator.integers(0, min(len(damaged), 200), 4):
                damaged[place] = generator.integers(256)
            path.write_bytes(damaged)
            found += len(train.fetch(np.array([0]), None).bad)
        assert found > 0


class TestWorkers:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_each_batch_holds_the_samples_of_its_plan(self, tmp_path, workers):
        fill(tmp_path, count=5)
        train = opened(tmp_path, val_fraction=0.2).train
        plan = whole(train)
        for micro, batch in zip(
            plan, Loader(train, workers=workers, pin_memory=False, warn=print).batches(plan), strict=True
        ):
            assert torch.equal(batch.images, train.fetch(micro.ids, None).images)
            assert torch.equal(batch.labels, train.labels[micro.ids])

    def fed(self, folder, *, workers, epoch=0):
        """Return the images and labels of an epoch, augmented."""
        data = DataConfig(
            dataset="imagefolder", data_dir=str(folder), image_size=16, resized_crop=True, flip=True, workers=workers
        )
        feed = Feed(
            open_data(data).train,
            Config(data=data, train=TrainConfig(batch_size=3)),
            World(),
            pin_memory=False,
            warn=print,
        )
        batches = list(feed.batches(epoch=epoch, start=0, steps=None))
        return torch.cat([batch.images for batch in batches]), torch.cat([batch.labels for batch in batches])

    def test_batches_and_augmentation_are_the_same_for_any_number_of_workers(self, tmp_path):
        fill(tmp_path, count=5)
        images, labels = self.fed(tmp_path, workers=0)
        for workers in (1, 2):
            again = self.fed(tmp_path, workers=workers)
            assert torch.equal(again[0], images)
            assert torch.equal(again[1], labels)
        assert not torch.equal(self.fed(tmp_path, workers=0, epoch=1)[0], images)

    def test_workers_serve_pass_after_pass_also_after_one_that_was_left_early(self, tmp_path):
        fill(tmp_path, count=5)
        dataset = opened(tmp_path, val_fraction=0.2).train
        loader = Loader(dataset, workers=2, pin_memory=False, warn=print)
        reference = [
            batch.images for batch in Loader(dataset, workers=0, pin_memory=False, warn=print).batches(whole(dataset))
        ]
        next(iter(loader.batches(whole(dataset))))
        for _ in range(2):
            images = [batch.images for batch in loader.batches(whole(dataset))]
            assert all(torch.equal(one, other) for one, other in zip(images, reference, strict=True))


def be_fifo(path):
    os.mkfifo(path)


def be_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


def be_device(path):
    path.symlink_to("/dev/zero")


def be_loop(path):
    path.symlink_to(path)


def be_folder(path):
    path.mkdir()
    path.joinpath("inside.txt").touch()


class TestWhatIsNoImageFile:
    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize("be", [be_fifo, be_socket, be_device, be_loop])
    def test_it_is_named_and_not_waited_for(self, tmp_path, be, workers):
        fill(tmp_path, classes=["a"])
        be(tmp_path / "a" / "9.png")
        train, validation = opened(tmp_path, val_fraction=0.2)
        part = train if tmp_path / "a" / "9.png" in paths_of(train) else validation
        told = []
        batches = list(Loader(part, workers=workers, pin_memory=False, warn=told.append).batches(whole(part)))
        assert sum(batch.bad for batch in batches) == 1
        assert_warning(told[0], "damaged-image", f"{tmp_path}/a/9.png (")

    def test_a_folder_with_the_name_of_an_image_is_a_folder(self, tmp_path):
        fill(tmp_path, classes=["a"])
        be_folder(tmp_path / "a" / "9.png")
        assert sum(map(len, opened(tmp_path))) == 4

    def test_control_characters_of_a_name_are_not_shown(self, tmp_path):
        fill(tmp_path, classes=["a"], count=1)
        (tmp_path / "a" / "\x1b[2Jred.png").touch()
        told = []
        for part in opened(tmp_path, val_fraction=0.5):
            list(Loader(part, workers=0, pin_memory=False, warn=told.append).batches(whole(part)))
        assert [line.isprintable() for line in told] == [True]


class TestFoldersThatCannotBeRead:
    def test_it_is_named(self, tmp_path, monkeypatch):
        fill(tmp_path)
        scandir = os.scandir

        def refuse(path):  # as for anybody but root
            if os.fspath(path).endswith("dog"):
                raise PermissionError(13, "Permission denied", os.fspath(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)
        with refused("data-unreadable", tmp_path / "dog", "Permission denied"):
            opened(tmp_path)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_an_error_of_the_disk_keeps_its_number(self, tmp_path, monkeypatch, workers):
        fill(tmp_path)

        def refuse(*_, **__):
            raise OSError(5, "Input/output error", "0.png")

        monkeypatch.setattr(ImageFolder, "_decode", refuse)
        train = opened(tmp_path).train
        loader = Loader(train, workers=workers, pin_memory=False, warn=print)
        with pytest.raises(OSError, match="Input/output error") as raised:
            list(loader.batches(whole(train)))
        loader.close()
        assert raised.value.errno == 5


class TestManyBits:
    @pytest.mark.parametrize("suffix", [".png", ".tif"])
    def test_of_16_bits_of_grey_the_upper_ones_count(self, tmp_path, suffix):
        values = np.linspace(0, 65535, 24 * 32).reshape(24, 32).astype(np.uint16)
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            for number in range(2):
                path = tmp_path / name / f"{number}{suffix}"
                image = Image.fromarray(values if name == "a" else (values >> 8).astype(np.uint8))
                image.save(path)
        wide, narrow = (
            opened(tmp_path, val_fraction=0.5).train.fetch(np.array([number]), None).images for number in (0, 1)
        )
        assert torch.equal(wide, narrow)
        assert wide.float().std() > 50

    def test_numbers_of_no_known_range_are_no_image(self, tmp_path):
        fill(tmp_path, classes=["a"])
        Image.fromarray(np.full((20, 20), 1.5, dtype=np.float32)).save(tmp_path / "a" / "0.tif")
        fetched = [part.fetch(np.arange(len(part)), None) for part in opened(tmp_path)]
        (reason,) = (reason for part in fetched for reason in part.reasons)
        assert "mode F" in reason

    def test_one_of_too_many_pixels_is_not_decoded(self, tmp_path):
        fill(tmp_path, classes=["a"])
        fetched = [part.fetch(np.arange(len(part)), None) for part in opened(tmp_path, max_image_pixels=24 * 32 - 1)]
        for reason in (reason for part in fetched for reason in part.reasons):
            assert re.findall(r"\d+", reason) == ["32", "24", "767"]
            assert "max_image_pixels=767" in reason
        assert sum(len(part.bad) for part in fetched) == 4
