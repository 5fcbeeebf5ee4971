"""jobscripts/lib/sitecustomize.py: scripts of other launchers as ranks of torchrun."""

import os
import re
import subprocess
import sys

import pytest

from support import ROOT, launch_words, started

SCRIPTS = ROOT / "tests" / "scripts" / "unchanged"
LIB = ROOT / "jobscripts" / "lib"


def run(script, folder, *, ranks=2, per_node=2):
    """Run a script as a job does, in ``folder``; return exit code, output, ranks, and the sizes that were recorded."""
    logs = folder / "logs" / "1"
    logs.mkdir(parents=True)
    words = launch_words("torchrun", ranks, program=[str(SCRIPTS / script)])[:-1]
    env = {
        "PYTHONPATH": str(LIB),
        "RUN_DIR": str(folder),
        "TRAINER_ATTEMPT": "1",
        "TRAINER_WORLD_SIZE": str(ranks),
        "TRAINER_RANKS_PER_NODE": str(per_node),
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "1",
    }
    with started(words, folder / "log", **env) as launch:
        code = launch.wait()
    formed = {tuple(map(int, found)) for found in re.findall(r"joined as (\d) of (\d)", launch.output)}
    return code, launch.output, formed, [file.read_text() for file in logs.glob("world.*")]


@pytest.mark.parametrize("script", ["sets_address.py", "local_rank.py"])
def test_a_script_of_another_launcher_joins_as_it_was_started(script, tmp_path):
    code, output, formed, sizes = run(script, tmp_path)
    assert (code, formed, sizes) == (0, {(0, 2), (1, 2)}, ["2\n"]), output


def test_a_script_that_starts_ranks_of_its_own_is_told_how_to_submit_it(tmp_path):
    code, output, formed, sizes = run("spawns.py", tmp_path / "many")
    assert (code, formed, sizes) == (1, set(), [])
    assert "set SLIPWAY_RANKS_PER_NODE=1" in output
    code, output, formed, sizes = run("spawns.py", tmp_path / "one", ranks=1, per_node=1)
    assert (code, formed, sizes) == (0, {(0, 2), (1, 2)}, ["2\n"]), output


def test_a_script_for_horovod_does_not_train_twice(tmp_path):
    code, output, formed, _ = run("under_horovod.py", tmp_path)
    assert (code, formed) == (1, set())
    assert "Horovod has joined 1 of 2 ranks: set BACKEND=horovod" in output


def test_the_environment_s_own_sitecustomize_runs_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('its own')\n")
    path = os.pathsep.join(map(str, (LIB, tmp_path)))
    code = "import sys; print(any('jobscripts' in path for path in sys.path))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("its own\nFalse\n", "")
