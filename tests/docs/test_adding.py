"""docs/contributing/adding.md, followed literally in copies of the tree: its scheduler and its runtime run ranks."""

import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

from readme import ROOT, fresh_clone

PAGE = (ROOT / "docs" / "contributing" / "adding.md").read_text(encoding="utf-8")
NEW = re.compile(r"`([\w./-]+)`:\n\n +```\w+\n(.*?) +```\n", flags=re.DOTALL)
CH_RUN = """#!/bin/sh
printf "%s\\n" "$@" >"$CALLS.$$"
until [ "$1" = -- ]; do shift; done
shift
exec "$@"
"""
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


def follow(example, tree, programs):
    """Write the new files of an example to a fresh copy of the tree, and stand-ins for programs to its ``bin``."""
    section = re.split(r"(?m)^##+ ", PAGE.partition(f"### Example: {example}\n")[2])[0]
    files = NEW.findall(section)
    fresh_clone(tree)
    for name, text in files:
        assert not (tree / name).exists(), name
        (tree / name).parent.mkdir(exist_ok=True)
        (tree / name).write_text(textwrap.dedent(text))
    (tree / "bin").mkdir()
    for program, text in programs.items():
        (tree / "bin" / program).write_text(text)
        (tree / "bin" / program).chmod(0o755)
    (tree / "my_train.py").write_text(SCRIPT)
    return [name for name, _ in files]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Return a copy of the tree with the scheduler, and the files of a node."""
    tree = tmp_path_factory.mktemp("adding") / "tree"
    assert len(follow("Grid Engine", tree, {"qrsh": QRSH, "qstat": "#!/bin/sh\n"})) == 3
    (tree / "hosts").write_text("localhost 4 gpu.q@node1 UNDEFINED\nlocalhost 4 low.q@node1 UNDEFINED\n")
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


def test_script_for_added_grid_engine_has_its_directives(tree, script):
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
def test_grid_engine_job_runs_and_exits_with_code_of_verdict(tree, script, verdict, code, tmp_path):
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


def test_ranks_run_in_containers_of_the_new_runtime(tmp_path):
    tree, image, runs, calls = (tmp_path / name for name in ("tree", "image", "runs", "calls"))
    for folder in (image, runs, calls):
        folder.mkdir()
    assert len(follow("Charliecloud", tree, {"ch-run": CH_RUN})) == 2
    done = run(tree, "shellcheck", "--external-sources", "jobscripts/lib/charliecloud.bash")
    assert done.returncode == 0, done.stdout
    render = "render ddp-local --site laptop --set container=charliecloud --output jobscripts/charliecloud.sh"
    done = run(tree, sys.executable, "-m", "jobgen", *render.split())
    assert done.returncode == 0, done.stderr
    header = (tree / "jobscripts" / "charliecloud.sh").read_text().partition("\nset -")[0]
    assert "Charliecloud 0.37" in " ".join(header.replace("\n#", " ").split())
    settings = {
        "USE_CONTAINER": "1",
        "SLIPWAY_IMAGE": str(image),
        "SLIPWAY_DEVICE": "cpu",
        "SLIPWAY_SCRIPT": "my_train.py",
        "SLIPWAY_OUTPUT": str(runs),
        "SLIPWAY_LOCAL_DISK": str(tmp_path),
    }
    env = {"CALLS": f"{calls}/ch-run", "HOME": "/var", "MASTER_ADDR": "127.0.0.1"}
    done = run(tree, "bash", "jobscripts/charliecloud.sh", "--flag", "a b", **settings, **env)
    assert done.returncode == 0, done.stderr
    [folder] = runs.iterdir()
    for rank in (0, 1):
        found = json.loads((folder / f"rank{rank}.json").read_text())
        assert (found["WORLD_SIZE"], found["arguments"]) == ("2", ["--flag", "a b"])
    launches = [call for call in (file.read_text() for file in calls.iterdir()) if "torchrun" in call]
    assert len(launches) == 1
    options, _, program = launches[0].partition(f"\n{image}\n--\n")
    assert {"--write-fake", f"--cd={tree}", "--bind=/var"} <= set(options.split("\n"))
    assert "torchrun" in program.split("\n")
