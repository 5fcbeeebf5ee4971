"""Folders of image files: file discovery, decoding, and handling of corrupt files."""

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
from slipway.base.environment import World
from slipway.data.packed import SUFFIXES
from trainer.config.settings import Config, DataConfig, TrainConfig
from trainer.data.loader import NO_LABEL, Loader
from trainer.data.micro_batches import MicroBatch
from trainer.data.sets import open_data
from trainer.data.sets.imagefolder import ImageFolder, center_box, random_box
from trainer.data.training_batches import TrainingBatches
from trainer.model.normalise import normalisation
from trainer.parallel.device import CPU

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


def write_one(folder, pixels):
    """Write the same image as the only one of train and of val."""
    for side in ("train", "val"):
        save_image(folder / side / "a" / "0.png", pixels)


def opened(folder, **data):
    return open_data(DataConfig(dataset="imagefolder", data_dir=str(folder), image_size=16, **data))


def whole(dataset):
    """Return a plan that reads all of ``dataset`` in micro-batches of three."""
    ids = np.arange(len(dataset))
    return [MicroBatch(ids[begin : begin + 3], True, 3) for begin in range(0, len(ids), 3)]


def read(part, *, workers=0, plan=None):
    """Return the batches of ``part`` and the messages about its images."""
    told = []
    loader = Loader(part, workers=workers, device=CPU, warn=told.append)
    return list(loader.batches(plan or whole(part))), told


def first_image(part):
    return part.fetch(np.array([0]), None).images[0]


def reasons_of(parts):
    """Return the reasons why images could not be decoded."""
    return [reason for part in parts for reason in part.fetch(np.arange(len(part)), None).reasons]


def paths_of(part):
    return [Path(part.describe(number)) for number in range(len(part))]


class TestLayout:
    def test_train_and_val_folders_are_both_splits(self, tmp_path):
        fill(tmp_path / "train", count=3)
        fill(tmp_path / "val", count=2, suffix=".jpg")
        train, test = opened(tmp_path)
        assert train.classes == test.classes == ("cat", "dog")
        assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert test.labels.tolist() == [0, 0, 1, 1]
        assert test.describe(2) == str(tmp_path / "val" / "dog" / "0.jpg")
        assert train.shape == (3, 16, 16)

    def test_single_folder_is_split_per_class(self, tmp_path):
        fill(tmp_path, count=10)
        train, test = opened(tmp_path, val_fraction=0.3)
        assert train.labels.bincount().tolist() == [7, 7]
        assert test.labels.bincount().tolist() == [3, 3]
        assert sorted(paths_of(train) + paths_of(test)) == sorted(tmp_path.rglob("*.png"))
        for part in (train, test):
            assert [part.classes[label] for label in part.labels] == [path.parent.name for path in paths_of(part)]

    def test_images_are_found_at_any_depth_and_suffix_case(self, tmp_path):
        fill(tmp_path, count=4)
        (tmp_path / "cat" / "notes.txt").write_text("no image")
        (tmp_path / "stray.png").write_text("in no class")
        save_image(tmp_path / "cat" / "more" / "deep.JPG", noise(0))
        train, test = opened(tmp_path, val_fraction=0.5)
        names = [path.name for path in paths_of(train) + paths_of(test)]
        assert len(names) == 9
        assert "deep.JPG" in names

    @pytest.mark.parametrize(
        ("classes", "slug", "values"),
        [
            (["train/cat", "val/cat", "train/emu"], "classes-differ", ["emu"]),
            (["train/cat", "val/cat", "val/emu"], "classes-differ", ["emu"]),
            (["train/cat"], "no-data", ["/val"]),
            ([], "no-images", []),
        ],
    )
    def test_folder_without_expected_classes_is_refused(self, tmp_path, classes, slug, values):
        fill(tmp_path, classes=classes)
        with refused(slug, tmp_path, *values):
            opened(tmp_path)

    @pytest.mark.parametrize(
        ("make", "slug", "values"),
        [
            (Path.mkdir, "no-images", ["emu", ".jpeg"]),
            (lambda path: save_image(path / "0.png", noise(1)), "class-too-small", ["/emu"]),
            (lambda path: path.symlink_to("gone"), "data-unreadable", ["/emu"]),
            (lambda path: path.symlink_to("emu"), "data-unreadable", ["/emu"]),
        ],
        ids=["empty", "one image", "broken link", "loop"],
    )
    def test_unusable_class_folder_is_refused_by_name(self, tmp_path, make, slug, values):
        fill(tmp_path)
        make(tmp_path / "emu")
        with refused(slug, tmp_path, *values):
            opened(tmp_path)

    @pytest.mark.parametrize("part", ["", "train"])
    def test_class_name_that_is_not_utf8_is_refused(self, tmp_path, part):
        for side in {part, "val" if part else ""}:
            fill(tmp_path / side, classes=["emu", os.fsdecode(b"caf\xe9")])
        with refused("bad-path", tmp_path / part, r"'caf\udce9'", "UTF-8"):
            opened(tmp_path)

    @pytest.mark.parametrize("name", [".ipynb_checkpoints", "__MACOSX", "@eaDir", "lost+found"])
    @pytest.mark.parametrize("parent", ["", "train", "cat", "train/cat"])
    def test_folders_of_other_programs_are_skipped_and_logged(self, tmp_path, name, parent, caplog):
        caplog.set_level("INFO", "trainer")
        for part in ("train", "val") if parent.startswith("train") else ("",):
            fill(tmp_path / part)
        save_image(tmp_path / parent / name / "0.png", noise(1))
        train, validation = opened(tmp_path)
        assert train.classes == validation.classes == ("cat", "dog")
        assert not any(name in str(path) for path in paths_of(train) + paths_of(validation))
        assert_names(caplog.text, str(Path(parent, name)))

    def test_class_folder_may_be_link_but_inner_links_are_skipped(self, tmp_path, caplog):
        caplog.set_level("INFO", "trainer")
        fill(tmp_path / "else")
        fill(tmp_path / "data")
        (tmp_path / "data" / "emu").symlink_to(tmp_path / "else" / "dog")
        (tmp_path / "data" / "cat" / "more").symlink_to(tmp_path / "else" / "cat")
        parts = opened(tmp_path / "data")
        assert parts.train.classes == ("cat", "dog", "emu")
        assert sum(len(part) for part in parts) == 12
        assert_names(caplog.text, "cat/more")

    def test_missing_folder_is_refused_with_remedy(self, tmp_path):
        with refused("no-data", tmp_path / "gone", "--data-dir", "train/", "val/"):
            opened(tmp_path / "gone")


class TestDecoding:
    @pytest.mark.parametrize("suffix", sorted({*SUFFIXES, ".tif", ".tiff"}))
    def test_every_format_is_decoded_to_rgb_of_one_size(self, tmp_path, suffix):
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

    @pytest.mark.parametrize(
        ("mode", "colour", "expected"),
        [("L", 77, [77, 77, 77]), ("RGBA", (77, 88, 99, 10), [77, 88, 99]), ("1", 1, [255] * 3)],
    )
    def test_grey_and_transparent_images_are_converted_to_rgb(self, tmp_path, mode, colour, expected):
        for side in ("train", "val"):
            (tmp_path / side / "a").mkdir(parents=True)
            Image.new(mode, (20, 20), colour).save(tmp_path / side / "a" / "0.png")
        assert first_image(opened(tmp_path).train)[:, 8, 8].tolist() == expected

    def test_validation_crop_is_centered(self, tmp_path):
        pixels = flat(RED, 32, 96)
        pixels[:, 32:64] = BLUE
        write_one(tmp_path, pixels)
        image = first_image(opened(tmp_path).validation)
        assert torch.equal(image, torch.tensor(BLUE, dtype=torch.uint8).view(3, 1, 1).expand(3, 16, 16))
        assert center_box(96, 32) == (34, 2, 62, 30)

    def test_squash_resize_matches_torchvision(self, tmp_path):
        write_one(tmp_path, noise(0, 24, 30))
        resized = Resize((16, 16))(Image.open(tmp_path / "train" / "a" / "0.png"))
        for part in opened(tmp_path, resize="squash"):
            assert np.array_equal(first_image(part).permute(1, 2, 0), np.array(resized))

    def test_disabled_normalisation_gives_values_from_0_to_1(self, tmp_path):
        write_one(tmp_path, noise(0))
        train = opened(tmp_path, normalise=False).train
        image = first_image(train)
        assert torch.allclose(normalisation(Config(), train.mean_std, torch.device("cpu"))(image[None]), image / 255)

    def test_flip_mirrors_images_with_low_fifth_draw(self, tmp_path):
        pixels = flat(RED, 32, 32)
        pixels[:, 16:] = BLUE
        write_one(tmp_path, pixels)
        draws = np.array([[0, 0, 0, 0, 0.3], [0, 0, 0, 0, 0.7]], dtype=np.float32)
        mirrored, kept = opened(tmp_path, flip=True).train.fetch(np.array([0, 0]), draws).images
        assert kept[:, 8, 2].tolist() == list(RED)
        assert torch.equal(mirrored, kept.flip(2))

    @pytest.mark.parametrize(("width", "height"), [(60, 40), (40, 60), (50, 50)])
    def test_random_boxes_lie_in_image_and_span_documented_areas(self, width, height):
        areas = []
        for draws in np.random.default_rng(0).random((2000, 5), dtype=np.float32):
            left, upper, right, lower = random_box(width, height, draws)
            assert 0 <= left < right <= width + 0.001
            assert 0 <= upper < lower <= height + 0.001
            areas.append((right - left) * (lower - upper) / (width * height))
        assert 0.08 <= min(areas) < 0.1
        assert 0.9 < max(areas) <= 1

    def test_random_boxes_are_placed_by_third_and_fourth_draw(self):
        left, upper, _, _ = random_box(60, 40, np.array([0.2, 0.5, 0, 0, 0], dtype=np.float32))
        assert (left, upper) == (0, 0)
        _, _, right, lower = random_box(60, 40, np.array([0.2, 0.5, 1, 1, 0], dtype=np.float32))
        assert (right, lower) == pytest.approx((60, 40))


class TestCorruptImages:
    @pytest.fixture
    def folder(self, tmp_path):
        """Write six images; numbers 1 and 4 of the training part are corrupt."""
        for side in ("train", "val"):
            fill(tmp_path / side, classes=["a"], count=6, suffix=".jpg")
        damaged = tmp_path / "train" / "a" / "1.jpg"
        os.truncate(damaged, damaged.stat().st_size // 2)
        (tmp_path / "train" / "a" / "4.jpg").write_bytes(b"")
        return tmp_path

    def test_corrupt_images_are_black_and_their_positions_returned(self, folder):
        images, bad, _ = opened(folder).train.fetch(np.array([5, 4, 3, 1]), None)
        assert bad == [1, 3]
        assert images[[1, 3]].count_nonzero() == 0
        assert images[[0, 2]].count_nonzero() > 0

    @pytest.mark.parametrize("workers", [0, 2])
    def test_corrupt_images_are_not_counted_and_warn(self, folder, workers):
        batches, told = read(opened(folder).train, workers=workers)
        assert [batch.labels.tolist() for batch in batches] == [[0, NO_LABEL, 0], [0, NO_LABEL, 0]]
        assert [batch.bad for batch in batches] == [1, 1]
        for line, name in zip(told, ("1.jpg", "4.jpg"), strict=True):
            assert_warning(line, "damaged-image", f"{folder / 'train' / 'a' / name} (")

    def test_corrupt_image_in_padding_batch_is_not_counted(self, folder):
        (batch,), told = read(opened(folder).train, plan=[MicroBatch(np.array([1]), False, 6)])
        assert (batch.bad, batch.labels.tolist(), told) == (0, [NO_LABEL], [])

    def test_invalid_png_chunk_is_reported_as_damage(self, tmp_path):
        write_one(tmp_path, noise(0, 300, 300))
        train = opened(tmp_path).train
        path = paths_of(train)[0]
        data = path.read_bytes()
        second = data.index(b"IDAT", data.index(b"IDAT") + 4)
        path.write_bytes(data[:second] + b"\0\0\0\0" + data[second + 4 :])
        with pytest.raises(SyntaxError), Image.open(path) as image:  # an error that few expect of a decoder
            image.load()
        assert train.fetch(np.array([0]), None).bad == [0]

    @pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp", ".tif", ".ppm"])
    @pytest.mark.filterwarnings("ignore")  # PIL's, for odd metadata
    def test_damaged_file_of_any_format_raises_nothing(self, tmp_path, suffix):
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
    def test_each_batch_holds_planned_samples(self, tmp_path, workers):
        fill(tmp_path, count=5)
        train = opened(tmp_path, val_fraction=0.2).train
        plan = whole(train)
        for micro, batch in zip(plan, read(train, workers=workers)[0], strict=True):
            assert torch.equal(batch.images, train.fetch(micro.ids, None).images)
            assert torch.equal(batch.labels, train.labels[micro.ids])

    def fed(self, folder, *, workers, epoch=0):
        """Return the images and labels of an epoch, augmented."""
        data = DataConfig(dataset="imagefolder", data_dir=str(folder), image_size=16, resized_crop=True, flip=True)
        loader = Loader(open_data(data).train, workers=workers, device=CPU, warn=print)
        batches = TrainingBatches(loader, TrainConfig(batch_size=3), World())
        batches = list(batches.of_epoch(epoch=epoch, start=0, steps=None))
        return torch.cat([batch.images for batch in batches]), torch.cat([batch.labels for batch in batches])

    def test_batches_and_augmentation_are_independent_of_number_of_workers(self, tmp_path):
        fill(tmp_path, count=5)
        images, labels = self.fed(tmp_path, workers=0)
        for workers in (1, 2):
            again = self.fed(tmp_path, workers=workers)
            assert torch.equal(again[0], images)
            assert torch.equal(again[1], labels)
        assert not torch.equal(self.fed(tmp_path, workers=0, epoch=1)[0], images)

    def test_workers_are_reused_after_unfinished_pass(self, tmp_path):
        fill(tmp_path, count=5)
        dataset = opened(tmp_path, val_fraction=0.2).train
        loader = Loader(dataset, workers=2, device=CPU, warn=print)
        reference = torch.cat([batch.images for batch in read(dataset)[0]])
        next(iter(loader.batches(whole(dataset))))
        for _ in range(2):
            assert torch.equal(torch.cat([batch.images for batch in loader.batches(whole(dataset))]), reference)


def be_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


class TestNonImageFiles:
    @pytest.mark.parametrize("workers", [0, 1])
    @pytest.mark.parametrize(
        "make",
        [os.mkfifo, be_socket, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path)],
        ids=["fifo", "socket", "device", "loop"],
    )
    def test_fifo_socket_device_or_link_loop_warns_without_blocking(self, tmp_path, make, workers):
        fill(tmp_path, classes=["a"])
        make(tmp_path / "a" / "9.png")
        train, validation = opened(tmp_path, val_fraction=0.2)
        part = train if tmp_path / "a" / "9.png" in paths_of(train) else validation
        batches, told = read(part, workers=workers)
        assert sum(batch.bad for batch in batches) == 1
        assert_warning(told[0], "damaged-image", f"{tmp_path}/a/9.png (")

    def test_folder_named_like_image_is_not_an_image(self, tmp_path):
        fill(tmp_path, classes=["a"])
        (tmp_path / "a" / "9.png" / "inside").mkdir(parents=True)
        assert sum(map(len, opened(tmp_path))) == 4

    def test_control_characters_in_file_name_are_escaped(self, tmp_path):
        fill(tmp_path, classes=["a"], count=1)
        (tmp_path / "a" / "\x1b[2Jred.png").touch()
        told = [line for part in opened(tmp_path, val_fraction=0.5) for line in read(part)[1]]
        assert [line.isprintable() for line in told] == [True]


class TestDiskErrors:
    def test_unreadable_class_folder_is_refused_by_name(self, tmp_path, monkeypatch):
        fill(tmp_path)
        scandir = os.scandir

        def refuse(path):  # as for any user but root
            if os.fspath(path).endswith("dog"):
                raise PermissionError(13, "Permission denied", os.fspath(path))
            return scandir(path)

        monkeypatch.setattr(os, "scandir", refuse)
        with refused("data-unreadable", tmp_path / "dog", "Permission denied"):
            opened(tmp_path)

    @pytest.mark.parametrize("workers", [0, 1])
    def test_disk_error_is_raised_with_its_errno(self, tmp_path, monkeypatch, workers):
        fill(tmp_path)

        def refuse(*_, **__):
            raise OSError(5, "Input/output error", "0.png")

        monkeypatch.setattr(ImageFolder, "_decode", refuse)
        loader = Loader(opened(tmp_path).train, workers=workers, device=CPU, warn=print)
        with pytest.raises(OSError, match="Input/output error") as raised:
            list(loader.batches(whole(loader.dataset)))
        loader.close()
        assert raised.value.errno == 5


class TestBitDepthAndSize:
    @pytest.mark.parametrize("suffix", [".png", ".tif"])
    def test_16_bit_grey_image_is_reduced_to_upper_8_bits(self, tmp_path, suffix):
        values = np.linspace(0, 65535, 24 * 32).reshape(24, 32).astype(np.uint16)
        for name, pixels in {"a": values, "b": (values >> 8).astype(np.uint8)}.items():
            (tmp_path / name).mkdir()
            for number in range(2):
                Image.fromarray(pixels).save(tmp_path / name / f"{number}{suffix}")
        wide, narrow = opened(tmp_path, val_fraction=0.5).train.fetch(np.arange(2), None).images
        assert torch.equal(wide, narrow)
        assert wide.float().std() > 50

    def test_float_image_is_not_decoded(self, tmp_path):
        fill(tmp_path, classes=["a"])
        Image.fromarray(np.full((20, 20), 1.5, dtype=np.float32)).save(tmp_path / "a" / "0.tif")
        (reason,) = reasons_of(opened(tmp_path))
        assert "mode F" in reason

    def test_image_with_too_many_pixels_is_not_decoded(self, tmp_path):
        fill(tmp_path, classes=["a"])
        reasons = reasons_of(opened(tmp_path, max_image_pixels=24 * 32 - 1))
        assert [re.findall(r"\d+", reason) for reason in reasons] == [["32", "24", "767"]] * 4
        assert all("max_image_pixels=767" in reason for reason in reasons)
