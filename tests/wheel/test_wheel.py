"""The wheel as a login node gets it: the base install alone, on the oldest Python at hand, without torch."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Return the programs of an environment that holds the wheel and what it asks for, nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    # pyenv leaves names on the path that only tell how to get that Python.
    found = [path for name in ("python3.9", "python3.10") if (path := shutil.which(name)) and _works(path)]
    python = (found or [sys.executable])[0]
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv" / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    subprocess.run([*pip, "install", *folder.glob("slipway-*.whl")], check=True)
    return folder / "venv" / "bin"


def _works(python):
    return subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0


def _output(*words):
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(words, cwd=ROOT, env=env, check=True, capture_output=True, text=True).stdout


def test_torch_is_absent(bare):
    assert _output(bare / "python", "-c", "import importlib.util; print(importlib.util.find_spec('torch'))") == "None\n"


def test_the_scripts_are_rendered_as_they_are_committed(bare, table):
    assert _output(bare / "jobgen", "check") == ""
    site = ("--site", "jobscripts/sites/roce.toml")
    expected = (ROOT / "tests" / "golden" / "expected" / "ddp@roce").read_text()
    strip = [line for line in expected.splitlines() if not line.startswith("# Do not edit")]
    rendered = _output(bare / "jobgen", "render", "jobscripts/specs/ddp.toml", *site)
    assert [line for line in rendered.splitlines() if not line.startswith("# Do not edit")] == strip
    installed = _output(bare / "python", "-m", "pip", "list", "--format=freeze").split()
    table("the base install", [[_output(bare / "python", "--version").strip(), *installed]])
