"""``trainer pack``: a folder packed into one file that trains identically; interruption and resume."""

import errno
import io
import os
import pickle
import random
import resource
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from messages import assert_error, assert_names, assert_warning, refused
from slipway import PackedImages
from slipway.data.packed import archive_root, find_images
from support import environment_under_file_size_limit
from trainer.config.settings import DataConfig
from trainer.data.loader import Loader
from trainer.data.micro_batches import MicroBatch
from trainer.data.pack import AHEAD, _lock, _read_ahead, main, reduced
from trainer.data.sets import open_data
from trainer.parallel.device import CPU


def write_images(folder, *, classes=("cat", "cat-b", "dog"), count=5):
    generator = np.random.default_rng(0)
    for name in classes:
        (folder / name / "more").mkdir(parents=True)
        for number in range(count):
            pixels = generator.integers(0, 256, (24 + number, 32, 3), dtype=np.uint8)
            for inner, suffix in (("", "png"), ("more/", "JPG")):
                Image.fromarray(pixels).save(folder / name / f"{inner}{number}.{suffix}")
        (folder / name / "notes.txt").write_text("no image")
    return folder


@pytest.fixture(params=["", "two folders"])
def photos(request, tmp_path):
    folder = tmp_path / "photos"
    if not request.param:
        return write_images(folder)
    for part, count in (("train", 4), ("val", 2)):
        write_images(folder / part, count=count)
    return folder


def packed(folder, *flags):
    """Pack ``folder`` into photos.zip beside it, and return the archive."""
    target = folder.with_name("photos.zip")
    assert main([str(folder), str(target), *flags]) == 0
    return target


def partial_of(folder):
    """Return the path of the incomplete archive of ``folder``."""
    return folder.with_name("photos.zip.partial")


def image_bytes(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def opened(path):
    return open_data(DataConfig(dataset="imagefolder", data_dir=str(path), image_size=16, resized_crop=True, flip=True))


def fetched(dataset):
    draws = np.random.default_rng(1).random((len(dataset), 5), dtype=np.float32)
    return dataset.fetch(np.arange(len(dataset)), draws if dataset.draws else None)


def assert_alike(folder, archive):
    """Assert that both are the same data set to the trainer, bit by bit."""
    for one, other in zip(opened(folder), opened(archive), strict=True):
        assert one.classes == other.classes
        assert one.labels.equal(other.labels)
        assert fetched(one).images.equal(fetched(other).images)
        names = [other.describe(number).removeprefix(f"{archive}/") for number in range(len(other))]
        assert [one.describe(number) for number in range(len(one))] == [f"{folder}/{name}" for name in names]


KILLED = """
import io, os, signal, sys
from trainer.data import pack

real, writes = os.fdopen, 0

class Dying(io.FileIO):
    def write(self, data):
        global writes
        writes += 1
        if writes > {number}:
            super().write(bytes(data)[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(data)

os.fdopen = lambda descriptor, mode: io.BufferedRandom(Dying(descriptor, "r+b"), 512)
pack.main(sys.argv[1:])
"""
"""Packs, and is killed in the middle of a disk write."""


def grow(path):
    """Append to a file and keep its modification time."""
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"more")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


class TestPack:
    def test_packed_archive_equals_folder(self, photos, capsys):
        target = packed(photos)
        assert_alike(photos, target)
        assert zipfile.ZipFile(target).testzip() is None
        assert_names(capsys.readouterr().out, f"{target}: {len(zipfile.ZipFile(target).namelist())} ", " 3 ")
        assert [path.name for path in photos.parent.iterdir() if path != photos] == ["photos.zip"]

    def test_hidden_folders_are_skipped_and_reported(self, photos, capsys):
        for name, below in ((".ipynb_checkpoints", ""), ("@eaDir", "cat"), (".ipynb_checkpoints", "cat/more")):
            folder = photos / ("train" if (photos / "train").is_dir() else "") / below / name
            folder.mkdir(parents=True)
            shutil.copy(next(photos.rglob("0.png")), folder / "0.png")
        target = packed(photos)
        assert_names(capsys.readouterr().err, ".ipynb_checkpoints", "cat/@eaDir", "cat/more/.ipynb_checkpoints")
        assert not any("ipynb" in name or "@eaDir" in name for name in zipfile.ZipFile(target).namelist())
        whole = Path(shutil.make_archive(photos.parent / "whole", "zip", photos.parent, photos.name))
        for part in zip(opened(photos), opened(target), opened(whole), strict=True):
            assert len({one.classes for one in part}) == 1
            assert len({tuple(one.labels.tolist()) for one in part}) == 1

    @pytest.mark.skipif(not shutil.which("zip"), reason="no zip")
    @pytest.mark.parametrize("within", [True, False])
    def test_archive_written_by_zip_equals_folder(self, photos, within):
        folder = photos if within else photos.parent
        target = photos.parent / "z.zip"
        subprocess.run(["zip", "-rq", target, "." if within else photos.name], cwd=folder, check=True)
        for one, other in zip(opened(photos), opened(target), strict=True):
            assert fetched(one).images.equal(fetched(other).images)
            assert (one.classes, one.labels.tolist()) == (other.classes, other.labels.tolist())

    def test_packing_resumes_from_partial_file_of_any_length(self, photos):
        target = packed(photos)
        data, generator = target.read_bytes(), random.Random(2)
        for length in [0, 1, 29, 30, 31, len(data) - 1, *(generator.randrange(len(data)) for _ in range(40))]:
            target.unlink()
            partial_of(photos).write_bytes(data[:length])
            assert packed(photos).read_bytes() == data
            assert not partial_of(photos).exists()

    def test_packing_resumes_after_sigkill(self, tmp_path):
        photos = write_images(tmp_path / "photos")
        target = packed(photos)
        data, sizes = target.read_bytes(), set()
        for number in range(0, 40, 13):
            target.unlink()
            script = KILLED.format(number=number)
            killed = subprocess.run([sys.executable, "-c", script, str(photos), str(target)], check=False)
            assert killed.returncode == -9
            sizes.add(partial_of(photos).stat().st_size)
            assert packed(photos).read_bytes() == data
        assert len(sizes) > 2

    def test_damaged_start_of_partial_file_is_repaired(self, photos):
        expected = packed(photos).rename(photos.with_name("whole.zip")).read_bytes()
        data = bytearray(expected[:5000])
        data[200] ^= 1
        partial_of(photos).write_bytes(data)
        assert packed(photos).read_bytes() == expected

    @pytest.mark.parametrize(
        ("change", "values"),
        [
            (lambda path: os.utime(path, (1, 1)), ["0.png"]),
            (grow, ["0.png"]),
            (Path.unlink, []),
            (lambda path: shutil.copy(path, path.with_name("+.png")), []),
        ],
        ids=["touched", "grown", "removed", "added"],
    )
    def test_packing_refuses_to_resume_if_folder_changed(self, photos, change, values):
        packed(photos).rename(partial_of(photos))
        change(min(photos.rglob("0.png")))
        with refused("different-data", photos, partial_of(photos), *values):
            packed(photos)
        partial_of(photos).unlink()
        assert_alike(photos, packed(photos))

    def test_read_ahead_is_bounded(self):
        read = []
        source = SimpleNamespace(read=lambda name: read.append(name) or name)
        files = _read_ahead(source, [str(number) for number in range(1000)])
        assert next(files) == "0"
        assert len(read) <= 1 + AHEAD * len(os.sched_getaffinity(0))
        assert [*files] == [str(number) for number in range(1, 1000)]

    def test_packing_resumes_after_full_disk(self, tmp_path):
        photos, target = write_images(tmp_path / "photos"), tmp_path / "photos.zip"
        command = [sys.executable, "-m", "trainer", "pack", str(photos), str(target)]
        found = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            env=environment_under_file_size_limit(),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)),
        )
        assert (found.returncode, found.stderr.count("\n")) == (78, 1)
        assert_error(found.stderr, "cannot-write", f"{target}.partial", "File too large")
        subprocess.run(command, check=True, capture_output=True)
        assert_alike(photos, target)

    def test_second_process_packing_same_archive_is_refused(self, photos):
        partial_of(photos).touch()
        hold = "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True)"
        hold += "; sys.stdin.read()"
        with subprocess.Popen(
            [sys.executable, "-c", hold, partial_of(photos)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as other:
            other.stdout.readline()
            with refused("folder-in-use", partial_of(photos)):
                packed(photos)
            other.stdin.close()

    def test_lock_is_refused_if_other_process_completed_archive(self, tmp_path):
        partial = tmp_path / "photos.zip.partial"
        with partial.open("w+b") as file:
            partial.rename(tmp_path / "photos.zip")
            with refused("folder-in-use", partial):
                _lock(file, partial)
            partial.touch()
            with refused("folder-in-use", partial):
                _lock(file, partial)

    @pytest.mark.parametrize(
        ("name", "make", "slug"),
        [
            ("photos.zip", Path.touch, "file-exists"),
            ("photos.zip", Path.mkdir, "file-exists"),
            ("photos.zip", lambda path: path.symlink_to("nowhere"), "file-exists"),
            ("photos.zip.partial", Path.mkdir, "cannot-write"),
            ("photos.zip.partial", lambda path: path.symlink_to("photos/cat"), "cannot-write"),
        ],
    )
    def test_existing_target_is_refused_and_kept(self, photos, name, make, slug):
        make(photos.with_name(name))
        with refused(slug, f"{photos.with_name(name)} "):
            packed(photos)
        assert os.path.lexists(photos.with_name(name))

    @pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("nowhere")])
    def test_image_that_is_not_regular_file_is_refused(self, tmp_path, make):
        folder = write_images(tmp_path / "photos")
        make(folder / "dog" / "3b.png")
        with refused("data-unreadable", folder / "dog" / "3b.png"):
            packed(folder)
        (folder / "dog" / "3b.png").unlink()
        assert_alike(folder, packed(folder))

    def test_file_name_that_is_not_utf8_is_refused(self, tmp_path):
        folder = write_images(tmp_path / "photos")
        (folder / "cat" / "\udcff.png").touch()
        with refused("bad-path", f"{folder}/", "UTF-8"):
            packed(folder)

    @pytest.mark.parametrize(
        ("source", "target", "slug", "named"),
        [
            ("photos/cat/0.png", "x.zip", "not-a-folder", "/photos/cat/0.png"),
            ("photos", "gone/x.zip", "cannot-write", "/gone"),
            ("photos", "x" * 300, "cannot-write", os.strerror(errno.ENAMETOOLONG)),
            ("empty", "x.zip", "no-images", "/empty"),
        ],
    )
    def test_invalid_source_or_target_path_is_refused(self, tmp_path, source, target, slug, named):
        write_images(tmp_path / "photos", count=1)
        (tmp_path / "empty").mkdir()
        with refused(slug, named):
            main([str(tmp_path / source), str(tmp_path / target)])


NOISE = np.random.default_rng(0).integers(0, 256, (70, 70, 3), dtype=np.uint8)


class TestReducedImages:
    @pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "TIFF"])
    def test_reduced_image_has_given_shorter_side_and_same_format(self, kind):
        data = image_bytes(Image.new("RGB", (300, 200), (10, 200, 30)), kind)
        with Image.open(io.BytesIO(reduced(data, 64, 90))) as image:
            assert (image.size, image.format) == ((96, 64), kind)
            assert np.abs(np.asarray(image).astype(int) - (10, 200, 30)).max() <= 3

    @pytest.mark.parametrize(
        ("data", "shorter_side", "quality"),
        [
            (image_bytes(Image.new("RGB", (64, 64)), "PNG"), 64, 90),  # small
            *((image_bytes(Image.new(mode, (300, 300)), "PNG"), 64, 90) for mode in ("P", "I;16", "RGBA")),
            (image_bytes(Image.fromarray(NOISE), "JPEG", quality=1), 68, 100),  # it would be larger
            (b"no image", 64, 90),
        ],
        ids=["small", "P", "I;16", "RGBA", "larger", "damaged"],
    )
    def test_images_that_cannot_be_reduced_stay_unchanged(self, data, shorter_side, quality):
        assert reduced(data, shorter_side, quality) == data

    def test_reduced_image_keeps_exif_and_color_profile(self):
        exif = Image.Exif()
        exif[0x0112] = 6  # rotated
        data = image_bytes(Image.new("RGB", (300, 200)), "JPEG", exif=exif, icc_profile=b"profile")
        with Image.open(io.BytesIO(reduced(data, 64, 90))) as image:
            assert (image.getexif()[0x0112], image.info["icc_profile"]) == (6, b"profile")

    def test_shorter_side_flag_reduces_packed_images(self, photos):
        target = packed(photos, "--shorter-side", "10")
        with zipfile.ZipFile(target) as archive:
            sizes = {Image.open(archive.open(name)).size for name in archive.namelist()}
        assert {min(size) for size in sizes} == {10}
        assert [part.labels.tolist() for part in opened(target)] == [part.labels.tolist() for part in opened(photos)]


@pytest.mark.parametrize(
    ("names", "root", "found"),
    [
        (["cat/1.png", "dog/2.png"], "", ["cat", "dog"]),
        (["photos/cat/1.png", "photos/dog/2.png"], "photos", ["cat", "dog"]),
        (
            ["photos/cat/1.png", "photos/dog/2.png", "README.md", "__MACOSX/photos/cat/._1.png"],
            "photos",
            ["cat", "dog"],
        ),
        (["cat/1.png", "cat/more/2.png"], "", ["cat"]),
        (["train/cat/1.png", "train/dog/2.png"], "", ["train"]),
        (["photos/train/cat/1.png", "photos/val/cat/1.png"], "photos", ["train", "val"]),
        (["1.png"], "", []),
        ([], "", []),
    ],
)
def test_root_and_classes_are_found_from_archive_names(names, root, found):
    assert archive_root(names) == root
    assert find_images(names, root).classes == tuple(found)


def test_last_archive_member_of_duplicate_name_is_used():
    assert find_images(["a/1.png", "a/0.png", "a/1.png"]).numbers.tolist() == [1, 2]


class TestTraining:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_damaged_image_in_archive_is_reported_and_skipped(self, tmp_path, workers):
        target = packed(write_images(tmp_path / "photos"))
        info = zipfile.ZipFile(target).getinfo("dog/2.png")
        data = bytearray(target.read_bytes())
        data[info.header_offset + 30 + len("dog/2.png") + 700] ^= 1
        target.write_bytes(data)
        told, bad = [], 0
        for part in opened(target):
            ids = np.arange(len(part))
            loader = Loader(part, workers=workers, device=CPU, warn=told.append)
            bad += sum(batch.bad for batch in loader.batches([MicroBatch(ids, True, len(ids))]))
            loader.close()
        assert (bad, len(told)) == (1, 1)
        assert_warning(told[0], "damaged-image", f"{target}/dog/2.png (")

    @pytest.mark.parametrize("content", [b"", b"no archive", b"PK\3\4" * 9])
    def test_invalid_archive_is_refused(self, tmp_path, content):
        (tmp_path / "photos.zip").write_bytes(content)
        with refused("damaged-archive", tmp_path / "photos.zip"):
            opened(tmp_path / "photos.zip")

    def test_fifo_as_archive_is_refused(self, tmp_path):
        os.mkfifo(tmp_path / "photos.zip")
        with refused("data-unreadable", "--data-dir", tmp_path / "photos.zip"):
            opened(tmp_path / "photos.zip")


class TestPackedImages:
    def test_packed_images_match_torchvision_image_folder(self, photos):
        from torchvision.datasets import ImageFolder  # noqa: PLC0415

        part = "train" if (photos / "train").exists() else ""
        expected = ImageFolder(photos / part, transform=np.asarray)
        found = PackedImages(packed(photos), part, transform=np.asarray)
        assert (found.classes, found.class_to_idx) == (tuple(expected.classes), expected.class_to_idx)
        assert sorted(found.targets) == sorted(expected.targets)
        sums = [sorted((int(image.sum()), label) for image, label in dataset) for dataset in (found, expected)]
        assert sums[0] == sums[1]

    @pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
    def test_loader_workers_read_packed_images(self, tmp_path, context):
        images = PackedImages(packed(write_images(tmp_path / "photos")), transform=np.array)
        loader = DataLoader(images, batch_size=None, num_workers=2, multiprocessing_context=context)
        assert [label for _, label in loader] == list(images.targets)
        assert [pixels.tolist() for pixels, _ in loader] == [pixels.tolist() for pixels, _ in images]

    def test_unreadable_packed_images_and_archives_are_refused(self, tmp_path):
        folder = write_images(tmp_path / "photos")
        (folder / "cat" / "bad.png").write_bytes(b"no image")
        target = packed(folder)
        images = PackedImages(target)
        with refused("data-unreadable", target / "cat" / "bad.png"):
            images[5]
        with refused("no-images", target, "train/"):
            PackedImages(target, "train")
        with refused("data-unreadable", tmp_path / "gone", "No such file"):
            PackedImages(tmp_path / "gone")
        assert len(pickle.dumps(images)) < target.stat().st_size
