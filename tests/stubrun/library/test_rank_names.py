"""How a rank learns its number: name_rank.sh, name_node.sh, rank_loop.bash; and its umask."""

import shutil
import subprocess
import sys
import time

import pytest

from bash_library import LIB, run

PLAN = {"TRAINER_WORLD_SIZE": "4", "TRAINER_RANKS_PER_NODE": "2"}


@pytest.mark.parametrize(
    ("source", "env"),
    [
        ("slurm", {"SLURM_PROCID": "3", "SLURM_LOCALID": "1"}),
        ("openmpi", {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}),
        ("given", {"RANK": "3", "LOCAL_RANK": "1"}),
    ],
)
def test_name_rank_sets_rank_variables(source, env):
    show = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE ${HOROVOD_RANK-} ${HOROVOD_CROSS_RANK-}"'
    words = ["sh", str(LIB / "name_rank.sh"), source, "sh", "-c", show]
    assert run(*words, **env, **PLAN).stdout == "3 1 4 2  \n"
    assert run(*words, **env, **PLAN, HOROVOD_SIZE="4").stdout == "3 1 4 2 3 1\n"
    assert source == "given" or run(*words, **PLAN).returncode != 0


@pytest.mark.parametrize(("source", "name"), [("slurm", "SLURM_NODEID"), ("openmpi", "OMPI_COMM_WORLD_RANK")])
def test_name_node_sets_node_rank(source, name):
    show = 'echo "$NODE_RANK $PET_NODE_RANK $1"'
    words = ["sh", str(LIB / "name_node.sh"), source, "sh", "-c", show, "-", "a b"]
    assert run(*words, **{name: "1"}).stdout == "1 1 a b\n"
    assert run(*words).returncode != 0


def test_rank_loop_starts_ranks_of_node_and_returns_exit_code():
    show = 'echo "$RANK $LOCAL_RANK"; exit "$((RANK == 3 ? 5 : 0))"'
    done = run("bash", str(LIB / "rank_loop.bash"), "sh", "-c", show, NODE_RANK="1", **PLAN)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (5, ["2 0", "3 1"])


def test_rank_loop_forwards_sigterm_and_waits():
    save = "trap 'sleep 0.3; echo saved; exit 0' TERM; while :; do sleep 0.05; done"
    env = {"PATH": "/usr/bin:/bin", "NODE_RANK": "0", **PLAN}
    words = ["bash", LIB / "rank_loop.bash", "bash", "-c", save]
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
    time.sleep(0.5)
    process.terminate()
    assert process.communicate(timeout=300)[0] == "saved\nsaved\n"
    assert process.returncode == 0


def test_rank_loop_kills_ranks_that_ignore_sigterm(tmp_path):
    shutil.copy(LIB / "name_rank.sh", tmp_path)
    loop = tmp_path / "rank_loop.bash"
    loop.write_text((LIB / "rank_loop.bash").read_text().replace("KILL_SECONDS=30", "KILL_SECONDS=0.2"))
    deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done"
    env = {"PATH": "/usr/bin:/bin", "NODE_RANK": "0", **PLAN}
    process = subprocess.Popen(["bash", loop, "bash", "-c", deaf], env=env, stdout=subprocess.PIPE, text=True)
    assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == 137


@pytest.mark.parametrize(("given", "found"), [("027", "027"), ("", "022"), ("nonsense", "022"), ("0277", "022")])
def test_user_script_gets_umask_of_site(given, found):
    show = "import os; print(f'{os.umask(0):03o}')"
    words = ["sh", "-c", 'umask 022; exec "$@"', "-", sys.executable, "-c", show]
    done = run(*words, PYTHONPATH=str(LIB), PYTHONDONTWRITEBYTECODE="1", TRAINER_UMASK=given)
    assert done.stdout == f"{found}\n"
