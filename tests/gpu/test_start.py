"""Seconds from a command to its first optimiser step, by part: recorded by each way to start a rank."""

import json
import time

import pytest
import torch

from support import ROOT, launch_words, started

WAYS = {
    "mnist-cnn, one process": ("single", []),
    "mnist-cnn, one rank under torchrun": ("torchrun", []),
    "mnist-cnn, one rank by --nproc-per-node": ("spawn", []),
}
if torch.cuda.is_available():
    WAYS["resnet50 at 224, one process"] = ("single", ["--arch", "resnet50", "--dataset", "synthetic"])
LARGE = ["--synthetic-samples", "1024", "--batch-size", "128"]


@pytest.mark.parametrize("way", WAYS)
def test_profile_start_records_seconds_per_startup_phase(way, tmp_path, device, record):
    launcher, flags = WAYS[way]
    flags = [*flags, *LARGE] if flags else ["--batch-size", "64"]
    words = [*launch_words(launcher, 1), str(ROOT / "configs" / "digits.toml"), *flags, "--device", device]
    words += ["--max-steps", "1", "--no-figures", "--profile", "start", "--output-dir", str(tmp_path / "run")]
    began = time.monotonic()
    with started(words, tmp_path / "log") as launch:
        assert launch.wait() == 0, launch.output
    seconds = json.loads((tmp_path / "run" / "profile" / "start.rank0.json").read_text())["seconds"]
    record(**{name: round(value, 2) for name, value in seconds.items()}, total=round(sum(seconds.values()), 2))
    assert [*seconds][:: len(seconds) - 1] == ["imports", "first step"]
    assert 0 < sum(seconds.values()) < time.monotonic() - began
