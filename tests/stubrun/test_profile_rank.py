"""jobscripts/lib/profile_rank.py, with a stand-in of nsys."""

import os
import subprocess
import sys

import pytest

from support import ROOT

NSYS = """#!/bin/sh
for word in "$@"; do
    case $word in
        profile) ;;
        --output=*) : >"${word#--output=}.nsys-rep" ;;
        --*) ;;
        *) break ;;
    esac
    shift
done
exec "$@"
"""


@pytest.fixture
def profiled(tmp_path):
    """Return a function that runs Python words as a rank, and returns the exit code and what was left."""
    (tmp_path / "bin").mkdir()
    nsys = tmp_path / "bin" / "nsys"
    nsys.write_text(NSYS)
    nsys.chmod(0o755)

    def run(*words, **env):
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, ROOT / "jobscripts/lib/profile_rank.py", *words],
            env={"PATH": path, "RUN_DIR": str(tmp_path), **env},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, [path.name for path in (tmp_path / "profile").iterdir()]

    return run


@pytest.mark.parametrize(
    ("env", "number"), [({"RANK": "3", "SLURM_PROCID": "1"}, 3), ({"OMPI_COMM_WORLD_RANK": "2"}, 2), ({}, 0)]
)
def test_a_rank_leaves_a_report_and_its_own_exit_code(profiled, env, number):
    code = "import sys; print(sys.argv[1:]); sys.exit(75)"
    assert profiled("-c", code, "--lr", "a b", **env) == (75, "['--lr', 'a b']\n", [f"rank{number}.nsys-rep"])


def test_a_second_attempt_takes_the_place_of_the_first(profiled):
    for _ in range(2):
        assert profiled("-c", "", RANK="1") == (0, "", ["rank1.nsys-rep"])
