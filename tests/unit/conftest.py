"""Fixtures: a login node of stub commands, a clean environment, and sessions that each count as one process."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SBATCH = """#!/bin/bash
number=$(($(cat "$RECORD/number") + 1))
echo "$number" >"$RECORD/number"
[ "$number" != "${REFUSED:-}" ] || { echo "sbatch: error: no such partition" >&2; exit 1; }
printenv >"$RECORD/$number.environment"
printf '%s\\n' "$@" >"$RECORD/$number.arguments"
cp -- "$2" "$RECORD/$number.script"
echo "$number;cluster"
"""
QSUB = """#!/bin/bash
number=$(($(cat "$RECORD/number") + 1))
echo "$number" >"$RECORD/number"
printenv >"$RECORD/$number.environment"
printf '%s\\n' "$@" >"$RECORD/$number.arguments"
cp -- "$2" "$RECORD/$number.script"
grep --quiet '^#PBS -[Jt]' "$2" && echo "$number[].head" || echo "$number.head"
"""
QSTAT = """#!/bin/bash
for last; do :; done
[ "$*" != "-B -f" ] || { printf 'Server: head\\n    max_array_size = 100\\n'; exit; }
cat "$RECORD/$last.qstat" 2>/dev/null || { echo "qstat: Unknown Job Id $last" >&2; exit 153; }
"""
SCONTROL = """#!/bin/bash
for last; do :; done
cat "$RECORD/$last.state" 2>/dev/null || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
"""


@pytest.fixture
def group():
    """The default process group, of one rank."""
    import torch.distributed as dist  # noqa: PLC0415 -- few tests need torch

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def in_the_project(monkeypatch):
    """Work in the project's folder, in which jobgen finds specs and sites by name."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def setenv(monkeypatch):
    """Return a function that sets environment variables for the test."""

    def set_all(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.fixture
def login_node(tmp_path, monkeypatch):
    """Return the folder in which a stub login node records calls; its sbatch and qsub number jobs from 101."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("jobscripts", "configs", "build", "containers"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "slipway.sif").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    stubs = {"sbatch": SBATCH, "scontrol": SCONTROL, "sacct": "#!/bin/sh\nexit 1\n", "qsub": QSUB, "qstat": QSTAT}
    for name, text in stubs.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "number").write_text("100")
    for name in list(os.environ):
        if name.startswith("SLIPWAY_") or name in {"USE_CONTAINER", "BACKEND", "RUN_DIR", "DATA"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("RECORD", str(tmp_path))
    monkeypatch.chdir(folder)
    return tmp_path


class ForgetfulProcess:
    """State of a process that forgets its sessions, as if each session had its own process."""

    def __setattr__(self, name, value):
        pass

    @property
    def folders(self):
        return {}

    origin = left = None


@pytest.fixture
def agree_after_each_step(monkeypatch):
    """Make sessions outside of a job agree after each step, so that tests know at which step a stop takes effect."""
    monkeypatch.setattr("slipway.run.agreement.VOTE_INTERVAL", 0)
    for name in ("RUN_DIR", "TRAINER_ATTEMPT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def script_file(monkeypatch):
    """Set the script name of pytest-xdist workers as in a plain pytest process: the run folder is named after it."""
    monkeypatch.setattr("__main__.__file__", sys.argv[0], raising=False)


@pytest.fixture(autouse=True)
def treat_each_session_as_a_process(monkeypatch):
    """Let tests continue a run within one process, except the tests of ``slipway.script.identity``."""
    if identity := sys.modules.get("slipway.script.identity"):
        monkeypatch.setattr(identity, "process", ForgetfulProcess())
    if stop := sys.modules.get("slipway.base.stop"):
        monkeypatch.setattr(stop.StopRequest, "carried_over", stop.Reason.NONE)
