"""jobscripts/lib/profile_rank.py, with a stub of nsys that starts its program as a child, as nsys does."""

import os
import subprocess
import sys

import pytest

from support import ROOT

LIB = ROOT / "jobscripts" / "lib"
NSYS = """#!/bin/sh
for word in "$@"; do
    case $word in
        --output=*) report=$(printf %s "${word#--output=}" | sed 's/%%/@/g; s/%h/host/g; s/@/%/g') ;;
        profile | --*) ;;
        *) break ;;
    esac
    shift
done
"$@"
code=$?
: >"$report.nsys-rep"
exit $code
"""


@pytest.fixture
def profiled(tmp_path):
    """Return a function that runs Python words as a rank and returns exit code, messages and remaining files."""
    (tmp_path / "bin").mkdir()
    nsys = tmp_path / "bin" / "nsys"
    nsys.write_text(NSYS)
    nsys.chmod(0o755)
    run_folder = tmp_path / "100%h"
    run_folder.mkdir()

    def run(*words, **env):
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, LIB / "profile_rank.py", *words],
            env={"PATH": path, "RUN_DIR": str(run_folder), "TRAINER_ATTEMPT": "2", **env},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr, [path.name for path in (run_folder / "profile").iterdir()]

    return run


@pytest.mark.parametrize(
    ("env", "number"), [({"RANK": "3", "SLURM_PROCID": "1"}, 3), ({"OMPI_COMM_WORLD_RANK": "2"}, 2), ({}, 0)]
)
def test_profiled_rank_writes_report_and_keeps_exit_code(profiled, env, number):
    code = "import sys; print(sys.argv[1:]); sys.exit(75)"
    reports = [f"rank{number}.attempt2.nsys-rep"]
    assert profiled("-c", code, "--lr", "a b", **env) == (75, "['--lr', 'a b']\n", reports)


def test_profiled_script_with_explicit_rank_joins_process_group(profiled):
    code = (
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())\n"
        "print(dist.get_world_size())\n"
        "dist.destroy_process_group()"
    )
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TRAINER_WORLD_SIZE": "1", "TRAINER_RANKS_PER_NODE": "2"}
    found, said, _ = profiled("-c", code, PYTHONPATH=str(LIB), PYTHONDONTWRITEBYTECODE="1", **rank)
    assert (found, said) == (0, "1\n")
