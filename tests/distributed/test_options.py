"""Each option works in a real run that is resumed half-way; combinations are up to the user."""

import json
import pty
import shlex

import pytest
from PIL import Image

from messages import assert_error, assert_names, assert_warning
from support import DIGITS, TRAINER, status, train, train_many, weights

FLAGS = ["--no-figures", "--checkpoint-interval", "2", "--keep", "9", "--log-interval", "1"]
EVERYWHERE = {
    "sgd and step schedule": ["--optimizer", "sgd", "--schedule", "step", "--gamma", "0.5"],
    "adadelta": ["--optimizer", "adadelta", "--lr", "1"],
    "adam": ["--optimizer", "adam", "--weight-decay", "0.01"],
    "label smoothing": ["--label-smoothing", "0.1"],
    "tensorboard": ["--tensorboard"],
}
"""Options that do not affect the backend: one process is enough."""
OVERFLOWS = ["--optimizer", "sgd", "--lr", "0.01", "--arch", "resnet18", "--batch-size", "8"]
"""Options whose gradients overflow with the loss scale of the first steps."""
TOGETHER = {
    "none": [],
    "float32": ["--amp", "none", "--no-channels-last"],
    "profile": ["--profile", "2-3", "--profile-ranks", "all"],
    "profile of the start": ["--profile", "start", "--profile-ranks", "1"],
    "bf16": ["--amp", "bf16"],
    "fp16 with loss scaling": ["--amp", "fp16", "--clip-grad", "1"],
    "fp16 with sgd": ["--amp", "fp16", *OVERFLOWS],
    "channels last": ["--channels-last"],
    "moving average of weights": ["--ema-decay", "0.9"],
    "batch size per rank": ["--batch-size-per-rank", "32", "--lr-scaling", "linear"],
    "batch norm": ["--arch", "resnet18", "--batch-size", "16", "--max-steps", "4"],
    "compiled": ["--compile", "--arch", "mlp"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folder of uninterrupted and resumed runs with each option, one start of the ranks per world size."""
    folder = tmp_path_factory.mktemp("options")
    for launcher, ranks, options in (("single", 1, EVERYWHERE), ("forked", 2, TOGETHER)):
        trainings = {}
        for option, words in options.items():
            flags = ["--epochs", "1", "--max-steps", "6", *FLAGS, *words]
            begun = folder / option / "whole" / "checkpoints" / "step_00000002"
            trainings[folder / option / "whole"] = flags
            trainings[folder / option / "resumed"] = [*flags, "--resume", str(begun)]
        said = train_many(launcher, ranks, trainings, folder / f"{launcher}.log")
        assert all("resumed at step 2" in text for text in said[1::2])
    return folder


@pytest.mark.parametrize("option", EVERYWHERE | TOGETHER)
def test_run_with_option_resumes_bitwise(option, runs):
    first, second = (weights(runs / option / name / "checkpoints" / "latest") for name in ("whole", "resumed"))
    assert all(first[name].equal(second[name]) for name in first)
    assert (runs / option / "resumed" / "tensorboard").exists() == (option == "tensorboard")


def test_fp16_sgd_run_resumes_before_first_optimizer_step(runs):
    steps = [runs / "fp16 with sgd" / "whole" / "checkpoints" / f"step_{step:08}" for step in (2, 6)]
    before, after = (json.loads((step / "manifest.json").read_text())["trees"] for step in steps)
    assert before["optimizer"] == {"dict": []}
    assert "optimizer" not in after
    assert dict(after["scaler"]["dict"])["scale"] < 2**15


def test_profile_start_records_startup_phases_on_given_ranks(runs):
    run = runs / "profile of the start" / "whole"
    [path] = (run / "profile").iterdir()
    assert path.name == "start.rank1.json"
    found = json.loads(path.read_text())
    assert found["rank"] == 1
    # Its process has trained before, so it has imported everything and joined the other ranks.
    assert [*found["seconds"]] == ["run folder", "data", "model", "checkpoint", "first step"]
    lines = [json.loads(line) for line in (run / "goodput.jsonl").read_text().splitlines()]
    [start] = [line["start"] for line in lines if "start" in line]
    assert start.keys() == found["seconds"].keys()


def test_profile_does_not_change_weights(runs):
    plain, profiled = (weights(runs / option / "whole" / "checkpoints" / "latest") for option in ("none", "profile"))
    assert all(plain[name].equal(profiled[name]) for name in plain)
    assert sorted(path.name for path in (runs / "profile" / "whole" / "profile").iterdir()) == [
        *("rank0.json", "rank0.trace.json.gz", "rank1.json", "rank1.trace.json.gz"),
    ]
    found = json.loads((runs / "profile" / "whole" / "profile" / "rank1.json").read_text())
    assert found["steps"] == [2, 3]
    assert all(found["parts"][name] > 0 for name in ("waiting for data", "forward", "backward", "update"))


@pytest.mark.horovod
def test_horovod_fp16_compression_rounds_gradients(tmp_path):
    flags = ["--arch", "mlp", "--max-steps", "6", *FLAGS, "--dtype", "float32"]
    for name, extra in {"full": [], "half": ["--fp16-compression"]}.items():
        train("horovodrun", 2, tmp_path / name, *flags, *extra)
    full, half = (weights(tmp_path / name / "checkpoints" / "latest") for name in ("full", "half"))
    difference = max(float((full[name] - half[name]).abs().max()) for name in full)
    assert 0 < difference < 1e-2
    """Gradients are rounded for communication; the weights are close nevertheless."""


def write_images(folder, count, *, train):
    """Write images of two classes; the first ``train`` are for training."""
    for number in range(count):
        part = folder / ("train" if number < train else "val") / ("dark" if number % 2 else "bright")
        part.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (50, 40), (20 + number if number % 2 else 200 + number,) * 3).save(part / f"{number}.png")


def test_image_folder_trains_and_bad_images_are_counted(tmp_path):
    write_images(tmp_path / "images", 40, train=32)
    (tmp_path / "images" / "train" / "dark" / "1.png").write_bytes(b"not an image")
    flags = ["--dataset", "imagefolder", "--data-dir", str(tmp_path / "images"), "--image-size", "32", "--arch", "mlp"]
    flags += ["--resized-crop", "--flip", "--batch-size", "8", "--epochs", "3", "--no-figures"]
    out = tmp_path / "run"
    said = train("spawn", 2, out, *flags, "--bad-image-share", "0.1")
    assert "dark/1.png" in said
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["accuracy"] > 0.8
    said = train("spawn", 2, tmp_path / "strict", *flags, "--bad-image-share", "0", code=1)
    assert_error(said, "too-many-bad-images", "bad_image_share=0", "--bad-image-share")


def test_too_many_bad_validation_images_fail_run_after_save(tmp_path):
    write_images(tmp_path / "images", 20, train=12)
    (tmp_path / "images" / "val" / "dark" / "13.png").write_bytes(b"not an image")
    flags = ["--dataset", "imagefolder", "--data-dir", str(tmp_path / "images"), "--image-size", "32", "--arch", "mlp"]
    flags += ["--batch-size", "6", "--epochs", "1", "--no-figures", "--resume", "auto"]
    for _ in range(2):  # at the end of the epoch, and when the complete run is evaluated again
        said = train("single", 1, tmp_path / "run", *flags, code=1)
        assert_error(said, "too-many-bad-images", "1 of 8 ")
        assert status(tmp_path / "run")["state"] == "failed"
    assert status(tmp_path / "run")["step"] == 2
    train("single", 1, tmp_path / "run", *flags, "--bad-image-share", "0.2")
    assert status(tmp_path / "run")["state"] == "done"


def test_progress_bar_is_shown_on_terminal(tmp_path, capfd):
    run = shlex.join([*TRAINER, str(DIGITS), "--epochs", "2", "--output-dir", str(tmp_path / "run"), "--no-figures"])
    assert pty.spawn(["sh", "-c", f"stty rows 25 cols 100; {run} >/dev/null"]) == 0
    assert_names(capfd.readouterr().out, "epoch 2/2", "samples/s", "loss=")


def test_requeued_run_prefers_own_checkpoint_over_resume_path(tmp_path):
    """The job script passes the same --resume PATH in each attempt; progress since then must not be lost."""
    begun, out = tmp_path / "begun", tmp_path / "run"
    train("single", 1, begun, "--max-steps", "3", *FLAGS)
    for steps in ("5", "7"):
        said = train("single", 1, out, "--max-steps", steps, *FLAGS, "--resume", str(begun))
    assert_warning(said, "checkpoint-ignored", begun)
    assert "resumed at step 5" in said
