"""build/setup: what it asks pip for, with a python3 that installs nothing."""

import os
import re
import subprocess

import pytest

from readme import ROOT, fresh_clone, without_downloads


@pytest.fixture
def installed(tmp_path):
    """Return the arguments of each pip that `build/setup train` starts in a fresh clone."""
    clone, log = fresh_clone(tmp_path / "clone"), tmp_path / "pip"
    python = without_downloads(tmp_path / "bin") / "python3"
    python.write_text(python.read_text().replace('"-m pip") ;;', f'"-m pip") echo "$*" >>{log} ;;'))
    env = {**os.environ, "PATH": f"{python.parent}:/usr/sbin:/usr/bin:/sbin:/bin"}
    subprocess.run(["build/setup", "train"], cwd=clone, env=env, check=True, capture_output=True, timeout=600)
    return log.read_text().splitlines()


def test_setup_installs_fixed_versions_with_hashes(installed):
    torch, torchvision, locked, tools, project = installed
    assert re.search(r" torch===\d+\.\d+\.\d+\+cpu$", torch)
    assert re.search(r" torchvision==\d+\.\d+\.\d+$", torchvision)
    for words in (locked, tools):
        assert "--no-deps --require-hashes " in words
    assert locked.endswith("locks/cpu.txt")
    assert "--no-index" in project
    lock = (ROOT / "containers" / "locks" / "cpu.txt").read_text(encoding="utf-8")
    names = re.findall(r"(?m)^([\w.-]+)==\S+ ", lock)
    assert {"msgspec", "numpy"} <= {*names}
