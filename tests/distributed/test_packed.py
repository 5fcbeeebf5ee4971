"""Training on a set of `trainer pack`: the very weights of the folder, also killed, and gone on with the other."""

import subprocess

import numpy as np
import pytest
from PIL import Image

from support import TRAINER, digest, last_step, train, training

FLAGS = [
    *("--dataset", "imagefolder", "--image-size", "24", "--resized-crop", "--flip", "--workers", "1", "--arch", "mlp"),
    *("--batch-size", "8", "--epochs", "6", "--checkpoint-interval", "4", "--log-interval", "1", "--no-figures"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a folder of JPEG and PNG files, and the file that it was packed into."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    generator = np.random.default_rng(0)
    for number in range(80):
        part, kind = ("val", "train", "train", "train")[number % 4], ("cat", "dog")[number // 4 % 2]
        pixels = generator.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        path = folder / part / kind / f"{number}.{'png' if number % 5 == 0 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((70 + number, 60)).save(path)
    packed = folder.with_suffix(".zip")
    subprocess.run([*TRAINER, "pack", str(folder), str(packed)], check=True, capture_output=True)
    return folder, packed


def test_a_run_that_is_resumed_from_the_folder_and_from_its_archive_in_turn_has_the_same_weights(data, tmp_path, table):
    folder, packed = map(str, data)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train("spawn", 2, whole, "--data-dir", folder, *FLAGS)
    killed = []
    for source, step in ((packed, 10), (folder, 24)):
        with training("spawn", 2, broken, *FLAGS, "--data-dir", source, "--resume", "auto") as launch:
            launch.until(lambda step=step: last_step(broken) >= step, f"step {step}")
            launch.kill()
        killed.append(last_step(broken))
    said = train("spawn", 2, broken, "--data-dir", packed, *FLAGS, "--resume", "auto")
    assert "data.data_dir" in said
    assert killed[1] < 6 * 8
    both = [digest(run / "checkpoints" / "latest") for run in (whole, broken)]
    assert both[0] == both[1]
    table("packed set", [(f"killed after steps {killed}", f"sha256 {both[0][:16]}...")])
