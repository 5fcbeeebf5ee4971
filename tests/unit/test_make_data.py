"""``trainer make-data``: the same images for the same seed, written completely or not at all."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from messages import assert_error, assert_names, refused
from slipway.base.contract import EXIT_USAGE
from support import ROOT, environment_under_file_size_limit
from trainer.config.commands import find_command
from trainer.config.settings import DataConfig
from trainer.data.sets import open_data
from trainer.data.sets.aerial import LOOKS


def make(*words):
    argv = ["make-data", *map(str, words)]
    return find_command(argv)(argv[1:])


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.png")}


def test_make_data_writes_folder_per_class_that_trainer_reads(tmp_path, capsys):
    folder = tmp_path / "data" / "aerial"
    assert make("aerial", folder, "--per-class", 5) == 0
    assert_names(capsys.readouterr().out, "105 ", " 21 ", f"--data-dir {folder}")
    splits = open_data(DataConfig(dataset="imagefolder", data_dir=str(folder), image_size=64))
    assert splits.train.classes == tuple(LOOKS) == tuple(sorted(LOOKS))
    assert (len(splits.train), len(splits.validation)) == (84, 21)
    images = splits.train.fetch(torch.arange(84).numpy(), None)
    assert images.bad == []
    assert images.images.shape == (84, 3, 64, 64)
    means = {splits.train.classes[label]: [] for label in splits.train.labels.tolist()}
    for image, label in zip(images.images, splits.train.labels.tolist(), strict=True):
        means[splits.train.classes[label]].append(image.float().mean(dim=(1, 2)))
    water, forest = (torch.stack(means[name]).mean(0) for name in ("harbor", "forest"))
    assert water[2] > water[0], "water is blue"
    assert forest[1] > max(forest[0], forest[2]), "a forest is green"


def test_same_seed_makes_same_images(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        make("aerial", tmp_path / name, "--per-class", 2, "--image-size", 16, "--seed", seed)
    found, again, others = (files(tmp_path / name) for name in "abc")
    assert found == again
    assert len({*found.values(), *others.values()}) == 2 * 2 * len(LOOKS), "all images must differ"


@pytest.mark.parametrize("made", ["folder", "file", "link"])
def test_existing_target_is_refused_and_left_unchanged(tmp_path, made):
    target = tmp_path / "aerial"
    {"folder": target.mkdir, "file": target.touch, "link": lambda: target.symlink_to("nowhere")}[made]()
    with refused("file-exists", target):
        make("aerial", target)
    assert [*tmp_path.iterdir()] == [target]


def test_failed_write_leaves_no_files(tmp_path):
    (tmp_path / "file").touch()
    with refused("cannot-write", f"{tmp_path}/file ", "File exists"):
        make("aerial", tmp_path / "file" / "aerial")
    script = f"ulimit -f 1; exec {sys.executable} -m trainer make-data aerial {tmp_path}/aerial --per-class 1"
    script += " --image-size 256"
    env = environment_under_file_size_limit()
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    assert done.returncode == 78
    assert_error(done.stderr, "cannot-write", tmp_path / "aerial", "File too large")
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


@pytest.mark.parametrize(
    ("words", "slug", "values"),
    [
        (["areal", "x"], "bad-flag-value", ["'areal'", "'aerial'"]),
        (["aerial"], "missing-argument", ["DIR "]),
        (["aerial", "x", "--per-class", "0"], "bad-flag-value", ["--per-class", "'0'"]),
        (["aerial", "x", "--image-size", "7"], "bad-flag-value", ["--image-size", "'7'"]),
        (["aerial", "x", "--lr", "1"], "unknown-flag", ["--lr"]),
    ],
)
def test_invalid_arguments_are_refused(tmp_path, monkeypatch, words, slug, values):
    monkeypatch.chdir(tmp_path)
    with refused(slug, *values, code=EXIT_USAGE):
        make(*words)
    assert [*Path().iterdir()] == []
