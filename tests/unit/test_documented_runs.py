"""Every documented ``jobgen run`` of a script, as a dry run on a stub login node: its flags are accepted."""

import shlex
import sys
from pathlib import Path

import pytest

from jobgen.cli import main
from readme import DRY_RUNS, ROOT

SITE = """
name = "mine"
gpus_per_node = 8
cpus_per_gpu = 8
shared = ["/"]
venv = ".venv"
modules = ["pytorch"]
[options]
partition = "gpu"
account = "example"
"""


@pytest.fixture
def folder(login_node, monkeypatch):
    """Return the folder of submission, with what the commands name: a script, environments, images and data."""
    home, here = login_node / "home", Path.cwd()
    environment = home / "scratch" / "me" / "envs" / "torch"
    environment.parent.mkdir(parents=True)
    environment.symlink_to(sys.prefix)
    for name in ("mine", "shared"):
        (home / "scratch" / name).mkdir()
    (home / ".conda").mkdir()
    (home / ".conda" / "environments.txt").write_text(f"{environment}\n")
    (here / ".venv").symlink_to(sys.prefix)
    for name in ("mine.sif", "slipway.sif", "pytorch-25.01.sif"):
        (here / name).touch()
    for name in ("my_train.py", "my_session.py", "my_fsdp.py"):
        (here / name).write_text("import torch.distributed\n")
    (here / "examples").symlink_to(ROOT / "examples")
    (here / "mine.toml").write_text(SITE)
    monkeypatch.setenv("HOME", str(home))
    return here


@pytest.mark.parametrize("command", DRY_RUNS)
def test_documented_run_is_accepted(folder, capsys, command):
    command = command.partition(" >")[0].replace("/scratch/", f"{folder.parent}/home/scratch/")
    words = [word for word in shlex.split(command)[1:] if word not in {"--follow", "--dry-run"}]
    site = words.index("--site") if "--site" in words else 0
    del words[site : site + 2 * bool(site)]
    words[1:1] = ["--dry-run", "--site", "mine.toml"]
    assert main(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.startswith("#!/usr/bin/env bash")


def test_documented_runs_are_found():
    assert len(DRY_RUNS) > 15
