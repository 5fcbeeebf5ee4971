"""Every command of README.md and docs/ that needs no cluster, in a fresh clone, in a reader's order.

Commands run unchanged, except that added flags shorten long training. Commands that submit run on the test cluster
(tests/cluster/test_readme.py); here ``jobgen submit`` shows what it would submit.
"""

import os
import re
import subprocess

import pytest
from PIL import Image

from readme import COMMANDS, HERE, LEAVES, NEEDED, ROOT, fresh_clone, without_downloads
from support import status

SHORT = " --max-steps 2 --no-figures"
SMALL = " --arch mlp"
DRY = re.compile(r"([A-Z_]+=\S+ )*jobgen submit ")


def shortened(command):
    """Return the command changed so that it takes seconds and writes only inside the clone."""
    if command == "make train":
        return f'{command} ARGS="{SHORT.strip()}{SMALL}"'
    if "examples/llm/train.py" in command:
        return f"{command.partition(' --text')[0]} --text README.md docs/start/*.md --epochs 1 --sequence 64"
    if DRY.match(command):
        return command if "--dry-run" in command else f"{command} --dry-run"
    trains = any(
        name in command
        for name in ("configs/digits.toml", "configs/split-toy.toml", "configs/aerial.toml", "imagefolder")
    )
    short = trains and not any(flag in command for flag in ("--dry-run", "--selftest"))
    small = SMALL if "digits.toml" in command else ""
    if "imagefolder" in command and "--image-size" not in command:
        small = " --image-size 64"
    return command.replace(" PATH ", " images ").replace("/opt/", "opt/") + (SHORT if short else "") + small


LOOKS_AT_EXIT = """
import atexit, sys
def look():
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        sys.stderr.write("a process group is left\\n")
atexit.register(look)
"""
"""Registered first, and so called last: with NCCL torch warns about such a group, and with Gloo ranks may abort."""

IN_ORDER = [command for command in COMMANDS if command in HERE or DRY.match(command)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return a fresh clone, in which earlier commands leave what later ones need."""
    folder = fresh_clone(tmp_path_factory.mktemp("docs") / "clone")
    programs = without_downloads(folder.with_name("bin"))
    for name in ("sbatch", "srun"):  # without one a dry run ends as the submission would
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    folder.with_name("site").mkdir()
    folder.with_name("site").joinpath("sitecustomize.py").write_text(LOOKS_AT_EXIT)
    for number in range(8):
        kind = folder / "images" / ("dark" if number % 2 else "bright")
        kind.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (60, 50), (200 * (number % 2),) * 3).save(kind / f"{number}.png")
    return folder


def run(clone, command):
    fixed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1"}
    fixed["PATH"] = f"{clone}/.venv/bin:{clone.with_name('bin')}:/usr/sbin:/usr/bin:/sbin:/bin"
    if command.startswith("torchrun"):
        fixed["PYTHONPATH"] = str(clone.with_name("site"))
    if "jobgen submit" in command and "--site" not in command:
        fixed["SLIPWAY_SITE"] = "mine"  # which stands for a default site
    theirs = {name: text for name, text in os.environ.items() if not name.startswith(("SLIPWAY_", "PYTHON", "VIRTUAL"))}
    words = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(
        words, cwd=clone, env=theirs | fixed, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    assert "a process group is left" not in done.stderr, command
    return done.stdout


def prepare(clone, before):
    """Leave in the clone what the preceding commands leave, if they have not run: when only this one was selected."""
    for made, name in LEAVES.items():
        if made in before:
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).touch()
    for made, name in NEEDED.items():
        if made in before and not (clone / name).exists():
            run(clone, "build/setup train" if made == "make train" else shortened(made))


@pytest.mark.parametrize("command", IN_ORDER, ids=str)  # pytest numbers the longer ones
def test_documented_command_works_in_order_of_pages(clone, command):
    if "build/setup" in command:
        run(clone, "make clean")  # an environment of another variant is refused
    else:
        prepare(clone, COMMANDS[: COMMANDS.index(command)])
    said = run(clone, shortened(command))
    if command == "python bench/memory.py":
        assert said in (ROOT / "docs" / "howto" / "split.md").read_text(encoding="utf-8")
    if "classify.py" in command:
        assert said in {"bright\n", "dark\n"}
    if command.endswith("my_train.py"):
        assert "2 ranks, loss 0.0" in said
    for name in ("my_session", "my_fsdp", "my_lightning", "my_fabric", "my_accelerate"):
        if command.endswith(f"{name}.py"):
            assert status(clone / "runs" / name)["state"] == "done"
