"""docs/adding.md, followed literally in a copy of the tree: Grid Engine becomes a scheduler, and its script runs."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from readme import ROOT, fresh_clone

RECIPE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8").partition("### Example: Grid Engine\n")[2]
NEW = re.compile(r"`([\w./-]+)`:\n\n +```\w+\n(.*?) +```\n", flags=re.DOTALL)
QRSH = '#!/bin/sh\n[ "$1" = -inherit ] || exit 1\nshift 2\nexec "$@"\n'
SCRIPT = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "DATA", "GPUS_PER_NODE", "RUN_DIR")
with open(f"{os.environ['RUN_DIR']}/rank{os.environ['RANK']}.json", "w") as file:
    json.dump({name: os.environ[name] for name in names} | {"arguments": sys.argv[1:]}, file)
if os.environ["RANK"] == "0" and (verdict := os.environ.get("VERDICT")):
    with open(f"{os.environ['RUN_DIR']}/verdict.{os.environ['TRAINER_ATTEMPT']}", "w") as file:
        file.write(verdict)
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Return a copy of the tree with the scheduler, and the files of a node."""
    tree = fresh_clone(tmp_path_factory.mktemp("adding") / "tree")
    files = NEW.findall(RECIPE)
    assert len(files) == 3
    for name, text in files:
        assert not (tree / name).exists(), name
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text(textwrap.dedent(text))
    (tree / "bin").mkdir()
    for program, text in {"qrsh": QRSH, "qstat": "#!/bin/sh\n"}.items():
        (tree / "bin" / program).write_text(text)
        (tree / "bin" / program).chmod(0o755)
    (tree / "hosts").write_text("localhost 4 gpu.q@node1 UNDEFINED\nlocalhost 4 low.q@node1 UNDEFINED\n")
    (tree / "my_train.py").write_text(SCRIPT)
    return tree


def run(tree, *words, **env):
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("SLIPWAY_", "PYTHON"))}
    path = {"PATH": f"{tree}/bin:{sys.prefix}/bin:/usr/bin:/bin", "PYTHONPATH": f"{tree}/src"}
    return subprocess.run(
        words, cwd=tree, env=kept | path | env, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def script(tree):
    words = ["-m", "jobgen", "render", "ddp", "--site", "gridengine", "--output", "jobscripts/ddp.sge"]
    done = run(tree, sys.executable, *words)
    assert done.returncode == 0, done.stderr
    return tree / "jobscripts" / "ddp.sge"


def test_the_script_is_one_of_grid_engine(tree, script):
    text = script.read_text()
    directives = re.findall(r"(?m)^#\$ (.*)$", text)
    assert directives == [
        "-S /bin/bash",
        "-cwd",
        "-N ddp",
        "-j y",
        "-r y",
        "-pe mpi-8 16",
        "-l h_rt=01:00:00,gpu=2",
        "-q gpu.q",
    ]
    assert "SLURM" not in text
    assert "PBS" not in text
    shellcheck = [
        "shellcheck",
        "--external-sources",
        "--source-path",
        "jobscripts/lib",
        "jobscripts/lib/gridengine.bash",
    ]
    done = run(tree, *shellcheck)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("verdict", "code"), [("", 0), ("out-of-time 5 time-limit", 99), ("stopped 5 user", 75)])
def test_a_job_runs_and_goes_back_into_the_queue(tree, script, verdict, code, tmp_path):
    env = {"JOB_ID": "7", "NSLOTS": "8", "PE_HOSTFILE": str(tree / "hosts"), "MASTER_ADDR": "127.0.0.1"}
    settings = {
        "USE_CONTAINER": "0",
        "SLIPWAY_VENV": sys.prefix,
        "SLIPWAY_DEVICE": "cpu",
        "SLIPWAY_SCRIPT": "my_train.py",
    }
    out = {"SLIPWAY_OUTPUT": str(tmp_path), "SLIPWAY_LOCAL_DISK": str(tmp_path), "VERDICT": verdict}
    done = run(tree, "bash", str(script), "--flag", "a b", **env, **settings, **out)
    assert done.returncode == code, done.stderr
    found = [json.loads((tmp_path / "ddp-7" / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    expected = {"WORLD_SIZE": "2", "DATA": "", "GPUS_PER_NODE": "2", "RUN_DIR": str(tmp_path / "ddp-7")}
    for rank in (0, 1):
        assert found[rank] == {"RANK": str(rank), **expected, "arguments": ["--flag", "a b"]}
    assert not list(tmp_path.glob("slipway-*"))
