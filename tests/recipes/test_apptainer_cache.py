"""Location of Apptainer's cache in builds, with a stub of Apptainer that records its environment."""

import os
import re
import subprocess

import pytest

APPTAINER = """#!/bin/bash
[ "$1" != --version ] || { echo apptainer version 1.4.0; exit; }
[ "$1" != build ] || { echo "$APPTAINER_CACHEDIR" >"$SEEN"; touch "${@: -2:1}"; }
"""


@pytest.mark.parametrize("words", [["build/image"], ["build/pull", "docker://site/torch:1"]], ids=["image", "pull"])
def test_apptainer_cache_is_user_setting_or_in_scratch(tree, tmp_path, words):
    pins = tree / "containers" / "pins" / "cpu.env"
    pins.write_text(re.sub("BUILD_SPACE_MB=.*", "BUILD_SPACE_MB=1", pins.read_text()))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "apptainer").write_text(APPTAINER)
    (tmp_path / "bin" / "apptainer").chmod(0o755)
    scratch, seen = tmp_path / "scratch", tmp_path / "seen"
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    fixed = {"PATH": path, "SCRATCH": str(scratch), "SEEN": str(seen), "ROUTES": "registry"}
    outside = {name: value for name, value in os.environ.items() if not name.startswith("APPTAINER_")} | fixed
    for given, expected in (({}, scratch / "cache"), ({"APPTAINER_CACHEDIR": "/mine"}, "/mine")):
        done = subprocess.run(words, cwd=tree, env=outside | given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert seen.read_text() == f"{expected}\n"
