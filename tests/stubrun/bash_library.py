"""Helpers for the tests of jobscripts/lib: a job script's state, stub programs, and checks of messages."""

import os
import struct
import subprocess
import time
from typing import NamedTuple

import pytest

from messages import assert_error
from slipway.base.contract import SETTINGS, SWITCH
from stubs import ROOT

LIB = ROOT / "jobscripts" / "lib"
START = """set -euo pipefail
readonly script_name=x.job scheduler={scheduler} job_id=4711
lib={lib} submit_folder=$PWD
source "$lib/{scheduler}.bash"
source "$lib/srun.bash"
source "$lib/mpirun.bash"
source "$lib/ssh.bash"
source "$lib/build.bash"
source "$lib/shell.bash"
source "$lib/{runtime}.bash"
"""
START += " ".join(
    f"{row.name}={'0' if row.kind is SWITCH else repr('')}"
    for row in SETTINGS.values()
    if row.name.startswith("SLIPWAY_")
)
START += """
launcher=srun srun_options=(--export=ALL) mpirun_options=() remote_shell=(ssh) container_runtime={runtime}
SLIPWAY_RANKS_PER_NODE='' SLIPWAY_SCRIPT='' SLIPWAY_CONFIG=$PWD/c.toml SLIPWAY_DATA='' SLIPWAY_LOCAL_DISK=$PWD/disk
SLIPWAY_DEVICE=cuda SLIPWAY_STAGE=0 SLIPWAY_MAX_REQUEUES=3 SLIPWAY_PREFLIGHT_SECONDS=5 SLIPWAY_IMAGE=$PWD/i.sif
SLIPWAY_VENV=$PWD/venv SLIPWAY_VARIANT=cpu SLIPWAY_HOROVOD=0 SLIPWAY_NCCL_PATH='' SLIPWAY_WHEELHOUSE=''
SLIPWAY_PYTHON=python3 SLIPWAY_BASE_IMAGE='' SLIPWAY_BUILD_ARGS=''
: "${{USE_CONTAINER:=1}}" "${{BACKEND:=ddp}}"
RUN_DIR=$PWD/run attempt=2 log_dir=$RUN_DIR/logs/2 nodes=(n1 n2) nnodes=2 head_node=n1 cpus=8 ranks_per_node=2
world_size=4 cpus_per_rank=4 gpus_per_node=2 first_port=24711 cancelled=0 code=0 scratch='' container=() data=''
image=$SLIPWAY_IMAGE venv=$SLIPWAY_VENV step_may_run='' port_is_given='' data_kind='' data_image='' mount_point=''
directives_gpus=2 directives_cpus=8 save_seconds=120 devices_per_rank=1 launch_pid='' job_variables=OURS_
SLIPWAY_NOTIFY_SECONDS=20 SLIPWAY_PROBE_SECONDS=20 SLIPWAY_ADAPT=1 entry_point_is_checked=1
SLIPWAY_NODES=2 SLIPWAY_WAIT_SECONDS=9 SLIPWAY_MAX_RESTARTS=3 SLIPWAY_SPARES=0 allocation=(n1 n2) planned_nodes=2
healthy_nodes=(n1 n2) lost_nodes=() restarts=0 restarts_without_progress=0 failed='' first_step=0
mkdir --parents disk run/logs/2
"""
"""State that a script has before it calls any function."""

ANSWER = """answer() { printf '%s\\0' $(($# + 1)) "${@:2}" end >"$1"; }; """
"""How a Python stub answers a job script: FILE WORD... (answer.py)."""
ADDRESS_ANSWER = ANSWER + """echo "${@:3}" >>"$HOME/asked"; """
"""The same for head_address.py, whose arguments are recorded."""
SRUN = 'while [[ $1 == --* ]]; do shift; done; exec "$@"'
"""A stub of srun that runs the command here."""


class Done(NamedTuple):
    """Result of a Bash script."""

    code: int
    out: str
    err: str


def run(*words, **env):
    """Run a program with only PATH and these variables in its environment."""
    return subprocess.run(
        words, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", **env}, timeout=600, check=False
    )


def answered(path):
    """Return the words of an answer."""
    count, *words, end = path.read_text().split("\0")[:-1]
    assert (int(count), end) == (len(words) + 2, "end")
    return words


def assert_dies(done, slug, *values, code=78, lines=1):
    """Assert that a script ended with this error, as the last of so many lines on standard error."""
    assert done[0] == code, done
    assert done[2].splitlines()[-1].startswith("x.job: "), done
    assert done[2].count("\n") == lines, done
    assert_error(done[2], slug, *values)


def assert_ended(done, slug, *values, out=""):
    """Assert that a script died with this error; or, if that is empty, that it succeeded without a message."""
    if slug:
        assert_dies(done, slug, *values)
    else:
        assert done == (0, out, "")


def give_rights(path, user, rights, kind="access"):
    """Give a user permissions on a file by an ACL; kind "default": on new files of a folder."""
    mine, others = (6, 4) if kind == "access" else (7, 5)
    entries = [(1, mine, -1), (2, rights, user), (4, others, -1), (0x10, rights | others, -1), (0x20, others, -1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", acl)
    except OSError as error:
        pytest.skip(f"no ACLs here: {error}")


def wait_until(holds):
    """Wait up to 60 s for a condition."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
