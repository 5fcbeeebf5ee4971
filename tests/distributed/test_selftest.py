"""`--selftest` on real ranks: healthy under every launcher, and its reports of faults planted in one rank."""

import os
import re
import shutil
import socket
import subprocess
from contextlib import ExitStack, contextmanager

import pytest

from messages import assert_error, slugs
from support import DIGITS, ROOT, TRAINER, started, status, train, verdict

FLAGS = ["--selftest", "--device", "cpu"]


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ("single", 1),
        ("spawn", 2),
        ("forked", 2),
        pytest.param("horovodrun", 2, marks=pytest.mark.horovod),
        pytest.param("mpirun", 2, marks=pytest.mark.horovod),
    ],
)
def test_selftest_of_healthy_ranks_reports_their_placement(launcher, ranks, tmp_path):
    said = train(launcher, ranks, tmp_path / "run", *FLAGS)
    for rank in range(ranks):
        here = rf"\b{socket.gethostname()}: rank {rank}, local rank {rank}, cpu, 1 thread\(s\) on "
        assert re.search(here + r".*, forward [\d.]+ ms, ", said)
    assert said.count(f"all-reduce {ranks * (ranks + 1) // 2} in ") == ranks
    assert re.search(rf"selftest: {ranks} rank\(s\).* 1 node", said)
    assert slugs(said) == []
    assert status(tmp_path / "run")["state"] == "done"
    assert verdict(tmp_path / "run") == "done 0 complete\n"
    assert not any((tmp_path / "run" / "checkpoints").iterdir())


def pair(tmp_path, *, source=None, cpu=None, meanwhile=lambda _: None, **env):
    """Run two ranks, the second of them from ``source`` and on ``cpu``, if given, with ``env``.

    Return their exit codes and messages.
    """
    meeting = [
        "--init-method",
        (tmp_path / "store").as_uri(),
        "--backend",
        "ddp",
        "--output-dir",
        str(tmp_path / "run"),
    ]
    with ExitStack() as stack:
        launches = []
        for rank in range(2):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}
            bound = [] if cpu is None else ["taskset", "-c", str(cpu) if rank else others_than(cpu)]
            words = [*bound, *TRAINER, str(DIGITS), *FLAGS, *meeting]
            more = {**env, "PYTHONPATH": str(source or ROOT / "src")} if rank else {}
            launch = started(words, tmp_path / f"{rank}.log", imports=bool(rank and source), **{**place, **more})
            launches.append(stack.enter_context(launch))
        meanwhile(launches)
        codes = [launch.wait() for launch in launches]
    said = [line for launch in launches for line in launch.output.splitlines() if line.startswith("trainer: ")]
    return codes, said


def test_selftest_fails_if_sources_differ_between_ranks(tmp_path):
    other = tmp_path / "src"
    shutil.copytree(ROOT / "src", other, ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "trainer" / "train.py").open("a") as file:
        file.write("# an older checkout\n")
    codes, said = pair(tmp_path, source=other)
    assert codes == [78, 78]
    assert len(said) == 1
    host = socket.gethostname()
    assert_error(said[0], "selftest-failed", "selftest: ", "trainer ", f"rank 0 ({host})", f"rank 1 ({host})")
    assert status(tmp_path / "run")["state"] == "failed"
    assert verdict(tmp_path / "run").startswith("failed 0 selftest-failed: ")


def test_selftest_fails_if_thread_counts_differ_between_ranks(tmp_path):
    codes, said = pair(tmp_path, OMP_NUM_THREADS="64")
    assert (codes, len(said)) == ([78, 78], 1)
    assert_error(said[0], "selftest-failed", "threads ", " 1 ", "rank 0 ", " 65 ")


def others_than(cpu):
    return ",".join(map(str, os.sched_getaffinity(0) - {cpu}))


@contextmanager
def busy_cpu():
    """Keep one CPU busy with other programs; yield its number and their processes.

    Each has a session, because the kernel may divide the time of a CPU among sessions instead of processes (autogroup).
    """
    cpu = max(os.sched_getaffinity(0))
    busy = ["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"]
    with ExitStack() as stack:
        programs = [subprocess.Popen(busy, start_new_session=True) for _ in range(9)]
        for program in programs:
            stack.callback(program.wait)
            stack.callback(program.kill)
        yield cpu, programs


def test_selftest_fails_and_reports_slow_rank(tmp_path):
    with busy_cpu() as (cpu, _):
        codes, said = pair(tmp_path, cpu=cpu)
    assert codes == [78, 78], "".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert_error(said[-1], "selftest-failed", "rank 1 ", socket.gethostname())


def test_selftest_passes_if_a_rank_is_slow_for_a_moment(tmp_path):
    with busy_cpu() as (cpu, programs):

        def free(launches):
            launches[0].until(lambda: "Measuring again" in launches[0].log.read_text(), "the first measurement")
            for program in programs:
                program.kill()

        codes, said = pair(tmp_path, cpu=cpu, meanwhile=free)
    assert (codes, said) == ([0, 0], []), "".join(log.read_text() for log in tmp_path.glob("*.log"))
