"""jobscripts/lib/sitecustomize.py: scripts for other launchers run as torchrun's ranks."""

import os
import re
import subprocess
import sys

import pytest

from messages import assert_names, slugs
from support import ROOT, launch_words, started

SCRIPTS = ROOT / "tests" / "scripts" / "unchanged"
LIB = ROOT / "jobscripts" / "lib"
SRUN = """#!/bin/bash
# Starts the tasks of a step on this machine, as srun numbers them.
while [[ $1 == --* ]]; do
    case $1 in
        --ntasks=*) tasks=${1#*=} ;;
        --ntasks-per-node=*) each=${1#*=} ;;
        --cpus-per-task=*) export SLURM_CPUS_PER_TASK=${1#*=} ;;
    esac
    shift
done
started=() code=0
trap 'kill "${started[@]}"' TERM
for ((number = 0; number < tasks; number++)); do
    SLURM_PROCID=$number SLURM_LOCALID=$((number % each)) SLURM_NODEID=$((number / each)) SLURM_NTASKS=$tasks "$@" &
    started+=($!)
    [ "$2" != -c ] || wait $!  # mkdir: the nodes have one disk here
done
for task in "${started[@]}"; do
    wait "$task" || code=$?
done
exit "$code"
"""


def run(script, folder, *, ranks=2, per_node=2):
    """Run a script like a job, in ``folder``; return exit code, output, ranks, and the recorded world sizes."""
    logs = folder / "logs" / "1"
    logs.mkdir(parents=True)
    words = launch_words("torchrun", ranks, program=[str(SCRIPTS / script)])[:-1]
    env = {
        "PYTHONPATH": str(LIB),
        "PYTHONDONTWRITEBYTECODE": "1",  # beside the library's files
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
def test_script_for_another_launcher_joins_as_torchrun_rank(script, tmp_path):
    code, output, formed, sizes = run(script, tmp_path)
    assert (code, formed, sizes) == (0, {(0, 2), (1, 2)}, ["2\n"]), output


@pytest.mark.parametrize(
    ("job", "nodes"),
    [("ddp.job", ["node1", "node2"]), ("ddp-ranks.job", ["node1", "node2"]), ("ddp-ranks.job", ["node1"])],
)
def test_slurm_variables_of_job_step_describe_rank(job, nodes, tmp_path):
    """Four ranks: two on each of two nodes, or all on one."""
    each = 4 // len(nodes)
    (tmp_path / "bin").mkdir()
    for name, text in {"srun": SRUN, "scontrol": f"#!/bin/sh\nprintf '%s\\n' {' '.join(nodes)}\n"}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "ENVIRONMENT": "BATCH",  # as sbatch sets it
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": ",".join(nodes),
        "SLURM_JOB_CPUS_PER_NODE": f"{4 * each}(x{len(nodes)})",
        "SLURM_GPUS_ON_NODE": str(each),
        "SLURM_SUBMIT_DIR": str(ROOT),
        "MASTER_ADDR": "0.0.0.0",  # noqa: S104 -- this machine; a job of several nodes refuses 127.0.0.1
        "GLOO_SOCKET_IFNAME": "lo",
        "USE_CONTAINER": "0",
        "SLIPWAY_VENV": sys.prefix,
        "SLIPWAY_DEVICE": "cpu",
        "SLIPWAY_SCRIPT": str(SCRIPTS / "reads_slurm.py"),
        "SLIPWAY_RUN_DIR": str(tmp_path / "run"),
        "SLIPWAY_LOCAL_DISK": str(tmp_path),
    }
    with started(["bash", f"jobscripts/{job}"], tmp_path / "log", **env) as launch:
        assert launch.wait() == 0, launch.output
    found = re.findall(r"joined as (\d) of (\d), GPU (\d), (\d+) threads", launch.output)
    assert sorted(found) == [(str(rank), "4", str(rank % each), "4") for rank in range(4)]
    assert "ranks-not-connected" not in slugs(launch.output)


def test_script_that_spawns_ranks_is_refused_with_advice(tmp_path):
    code, output, formed, sizes = run("spawns.py", tmp_path / "many")
    assert (code, formed, sizes) == (1, set(), [])
    assert set(slugs(output)) == {"joins-other-ranks"}
    assert_names(output, "SLIPWAY_RANKS_PER_NODE=1")
    code, output, formed, sizes = run("spawns.py", tmp_path / "one", ranks=1, per_node=1)
    assert (code, formed, sizes) == (0, {(0, 2), (1, 2)}, ["2\n"]), output


def test_horovod_script_under_torchrun_is_refused(tmp_path):
    code, output, formed, _ = run("under_horovod.py", tmp_path)
    assert (code, formed) == (1, set())
    assert set(slugs(output)) == {"joins-other-ranks"}
    assert_names(output, " 1 of 2 ", "BACKEND=horovod", "horovod.job")


def as_rank(*words, **more):
    """Run Python as a rank of two."""
    ranks = {"RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "SLURM_PROCID": "7", "PYTHONDONTWRITEBYTECODE": "1"}
    env = {**os.environ, **ranks, "PYTHONPATH": str(LIB), **more}
    return subprocess.run([sys.executable, *words], env=env, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("more", "arguments", "given"),
    [
        ("", [], 1),
        ("add('rest', nargs=argparse.REMAINDER)", ["x", "--y"], 1),
        ("parser.add_subparsers().add_parser('train').add_argument('--x')", ["train", "--x", "2"], 1),
        ("add('rest', nargs='*')", ["--", "--local_rank"], 1),
        ("", ["-l", "5"], 5),
    ],
)
@pytest.mark.parametrize("option", ["'--local_rank'", "'-l', '--local-rank'", "'--rank', '-l', '--local_rank'"])
def test_local_rank_option_is_inserted_before_script_arguments(more, arguments, given, option, tmp_path):
    if "-l" in arguments and "-l" not in option.split("'"):
        option = f"{option}, '-l'"
    script = tmp_path / "script.py"
    script.write_text(
        "import argparse\n# add_argument('--local-rank')\nparser = argparse.ArgumentParser(allow_abbrev=False)\n"
        f"add = parser.add_argument\nparser.add_argument({option}, dest='own', type=int, default=-1)\n{more}\n"
        "print(parser.parse_args().own)\n"
    )
    done = as_rank(script, *arguments)
    assert (done.returncode, done.stdout) == (0, f"{given}\n"), done.stderr
    assert "SLIPWAY_ADAPT=0" in done.stderr


# once: before the subcommand the parser does not know it, and ended the script with 2
@pytest.mark.parametrize(
    "definition",
    [
        "one = commands.add_parser('train')\nadd(one)",
        "add(parser)\nadd(commands.add_parser('train'))",
        "old = argparse.ArgumentParser(add_help=False)\nadd(old)\ncommands.add_parser('train', parents=[old])",
        "parser = commands.add_parser('train')\nadd(parser)",
        "def more(parser): add(parser)\nmore(commands.add_parser('train'))",
    ],
)
def test_local_rank_option_of_subcommand_is_not_inserted(definition, tmp_path):
    script = tmp_path / "script.py"
    parser = "import argparse\nparser = argparse.ArgumentParser()\nmain = parser\ncommands = parser.add_subparsers()\n"
    definition = re.sub(r"\badd\((\S+)\)(?m:$)", r"\1.add_argument('--local_rank', type=int, default=-1)", definition)
    script.write_text(f"{parser}{definition}\nprint(main.parse_args().local_rank)\n")
    done = as_rank(script, "train")
    assert (done.returncode, done.stdout) == (0, "-1\n"), done.stderr
    assert_names(done.stderr, "LOCAL_RANK", "--local")


# once: eval.py of rank 0 got --local_rank=0, and waited for the others
@pytest.mark.parametrize("how", ["subprocess.run", "os.execv"])
def test_child_process_of_rank_is_not_adapted(how, tmp_path):
    (tmp_path / "eval.py").write_text(
        "import argparse, os\nparser = argparse.ArgumentParser()\nparser.add_argument('--local_rank', default='-1')\n"
        "print(parser.parse_args().local_rank, os.environ['SLURM_PROCID'], flush=True)\n"
    )
    words = "['python', sys.argv[1]]" if how == "subprocess.run" else "sys.executable, ['python', sys.argv[1]]"
    starts = f"import os, subprocess, sys; os.environ['SLURM_PROCID'] = '9'; {how}({words})"
    done = as_rank("-c", starts, tmp_path / "eval.py")
    assert (done.returncode, done.stdout) == (0, "-1 9\n" if how == "subprocess.run" else "1 0\n"), done.stderr


# once: such a job kept SLIPWAY_RANK_PID, took its own ranks for children, and refused those that pass their rank
def test_job_submitted_by_rank_does_not_inherit_rank_variables():
    submits = (
        "import os; from jobgen.jobs.submit import environment_without_job; assert 'SLIPWAY_RANK_PID' in os.environ; "
        "assert not {'A', 'SLIPWAY_RANK_PID', 'SLIPWAY_EXPORTED'} & environment_without_job().keys(); "
        "code = '. jobscripts/lib/job.bash; unset_parent_job_variables; echo ${SLIPWAY_RANK_PID-none}'; "
        "os.execvp('bash', ['bash', '-c', code])"
    )
    done = as_rank("-c", submits, PYTHONPATH=f"{LIB}:{ROOT}/src", A="1", SLIPWAY_EXPORTED="A=1")
    assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr


def test_sitecustomize_of_environment_also_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('its own')\n")
    path = os.pathsep.join(map(str, (LIB, tmp_path)))
    code = "import sys; print(any('jobscripts' in path for path in sys.path))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("its own\nFalse\n", "")
