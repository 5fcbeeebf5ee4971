"""Every command of the README's first table, run as it stands there; long ones are cut short by flags behind them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from readme import COMMANDS, ELSEWHERE, HERE, ON_CLUSTER, ROOT, SCRIPT

SHORT = " --max-steps 2 --no-figures"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder that looks like a clone, where earlier rows have left what later ones need."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("configs", "jobscripts"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "runs" / "mine").mkdir(parents=True)
    for number in range(8):
        kind = folder / "images" / ("dark" if number % 2 else "bright")
        kind.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60, 50), (200 * (number % 2),) * 3).save(kind / f"{number}.png")
    (folder / "my_train.py").write_text(SCRIPT)
    return folder


def run(place, command):
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env = os.environ | root | {"OMP_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=place, env=env, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("command", HERE)
def test_a_row_does_what_it_says(place, command):
    trains = "trainer" in command and not any(flag in command for flag in ("--help", "--dry-run", "--self-test"))
    run(place, command.replace(" PATH ", " images ") + (SHORT if trains else ""))


def test_the_script_runs_where_ranks_are_started(place):
    said = run(place, "torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node 2 my_train.py")
    assert "2 ranks, loss 0.0" in said


def test_ten_lines_are_ten_lines():
    assert SCRIPT.count("# +\n") == 10


def test_no_row_is_left_out():
    assert len(COMMANDS) == len(HERE) + len(ON_CLUSTER) + len(ELSEWHERE) > 20
    for command, path in ELSEWHERE.items():
        assert command.split("/")[-1].removeprefix("make ") in (ROOT / path).read_text(), command
