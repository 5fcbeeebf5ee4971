"""``trainer.launch.dask`` with a real Dask scheduler and two workers on loopback: job steps, and the end of jobs."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from jobgen.schedulers.slurm import SCHEDULER as SLURM
from messages import assert_error, assert_names, refused
from slurm_here import SlurmHere
from trainer.launch.dask.connection import WORKERS, make_security
from trainer.launch.dask.request import NODES, REQUEST, Request, cancel_jobs, new_name

CLIENT = [sys.executable, "-m", "trainer.launch.dask"]
LIFELINE = """{
    trap 'echo "node $NODE_RANK was sent SIGTERM"; exit 3' TERM
    exec 3<&0
    { read -r; kill 0; } <&3 >/dev/null 2>&1 &
    echo "$$" >"$FILE.$NODE_RANK"
    for _ in {1..600}; do sleep 0.1 3<&- </dev/null; done
}
"""
"""Ends as the script of ``remote_script`` does: at the end of its standard input."""


def until(found, limit=300.0):
    deadline = time.monotonic() + limit
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a request whose scheduler and two workers are running."""
    folder = tmp_path_factory.mktemp("dask")
    make_security(folder)
    tls = [f"--tls-{name}={folder}/{file}.pem" for name, file in
           (("ca-file", "ca"), ("cert", "certificate"), ("key", "key"))]  # fmt: skip
    started = []

    def start(module, *words):
        command = [
            "setpriv",
            "--pdeathsig=KILL",
            sys.executable,
            "-m",
            f"distributed.cli.{module}",
            *words,
            *tls,
            f"--scheduler-file={folder}/s.json",
        ]
        with (folder / "log").open("ab") as log:
            started.append(subprocess.Popen([*command, "--no-dashboard"], stdout=log, stderr=log, cwd=folder))

    start("dask_scheduler", "--host=tls://127.0.0.1", "--port=0", "--dashboard-address=127.0.0.1:0")
    until((folder / "s.json").exists)
    for number in range(2):
        start("dask_worker", "--no-nanny", "--nthreads=4", "--host=127.0.0.1", f"--name=w{number}",
              "--dashboard-address=127.0.0.1:0", f"--local-directory={folder}",
              "--preload=trainer.launch.dask.worker")  # fmt: skip
    address = json.loads((folder / "s.json").read_text())["address"]

    def workers():
        return [line.split()[-1] for line in (folder / "log").read_text().splitlines() if "Start worker at" in line]

    until(lambda: len(workers()) == 2)
    (folder / WORKERS).write_text(json.dumps({"scheduler": address, "workers": workers()}))
    yield folder
    for process in started:
        process.terminate()
    for process in started:
        process.wait(300)


@pytest.fixture
def step(folder, tmp_path):
    """Return a function that starts a job step with a script."""
    started = []

    def step(script, *words):
        process = subprocess.Popen(
            [*CLIENT, "each-node", folder, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        process.stdin.write(f"{{\n{script.replace('$FILE', str(tmp_path / 'pid'))}\nexit\n}}\n")
        process.stdin.close()
        process.stdin = None
        started.append(process)
        return process

    yield step
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def pids(tmp_path):
    """Return a function that returns the processes of LIFELINE on both nodes once they run."""
    paths = [tmp_path / f"pid.{number}" for number in range(2)]
    return lambda: [int(until(lambda path=path: path.exists() and path.read_text())) for path in paths]


class TestJobStep:
    def test_output_is_forwarded_by_line_with_separate_streams(self, step):
        out, err = step("for i in {1..500}; do echo $NODE_RANK-$i; done; echo -n err$NODE_RANK >&2").communicate()
        lines = out.splitlines()
        for number in range(2):
            assert [line for line in lines if line.startswith(f"{number}-")] == [f"{number}-{i}" for i in range(1, 501)]
        assert len(lines) == 1000
        assert sorted([err[:4], err[4:]]) == ["err0", "err1"]

    def test_exit_code_is_that_of_failed_node(self, step):
        process = step("exit $((NODE_RANK * 7))")
        process.communicate()
        assert process.returncode == 7

    def test_invalid_utf8_in_output_is_replaced(self, step):
        out, _ = step(r"printf '\xff\xc3'; sleep 0.3; printf '\xa4\n'").communicate()
        assert out == "\ufffd\u00e4\n" * 2

    def test_failed_node_terminates_others_with_together_option(self, step, pids):
        process = step(f'if [ "$NODE_RANK" = 1 ]; then sleep 2; exit 5; fi\n{LIFELINE}', "--together")
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 5
        assert "node 0 was sent SIGTERM" in out

    def test_sigterm_is_forwarded_to_all_nodes(self, step, pids):
        process = step(LIFELINE)
        both = pids()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=300)
        assert sorted(out.splitlines()) == ["node 0 was sent SIGTERM", "node 1 was sent SIGTERM"]
        assert not any(map(psutil.pid_exists, both))
        assert process.returncode in {3, 143}

    def test_node_processes_end_if_job_step_is_killed(self, step, pids):
        process = step(LIFELINE)
        both = pids()
        process.kill()
        until(lambda: not any(map(psutil.pid_exists, both)))

    @pytest.mark.prove
    def test_processes_that_ignore_sigterm_are_killed(self, step, monkeypatch, pids):
        process = step("trap '' TERM\necho $$ >$FILE.$NODE_RANK\nfor i in {1..300}; do sleep 1; done")
        both = pids()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        assert not any(map(psutil.pid_exists, both))
        assert process.returncode == 128 + signal.SIGKILL

    def test_command_runs_on_first_node_with_arguments_unchanged(self, folder):
        words = [*CLIENT, "on-head-node", folder, "printf", "%s|", "a b", "$HOME", "*"]
        assert subprocess.check_output(words, text=True) == "a b|$HOME|*|"

    @pytest.mark.slow
    def test_unreachable_dask_scheduler_is_reported(self, folder, tmp_path):
        (tmp_path / WORKERS).write_text(json.dumps({"scheduler": "tls://127.0.0.1:9", "workers": []}))
        make_security(tmp_path)
        done = subprocess.run([*CLIENT, "each-node", tmp_path], input="", capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (78, 1), done.stderr
        assert_error(done.stderr, "dask-scheduler-silent", "tls://127.0.0.1:9")

    def test_killed_worker_fails_job_step_and_stops_other_node(self, folder, step, pids):
        """Must be the last test of this class: it kills one of the two workers."""
        process = step(LIFELINE, "--together")
        both = pids()
        psutil.Process(both[1]).parent().kill()
        out, err = process.communicate(timeout=300)
        assert process.returncode == 1
        assert_names(err, "node 1 (tls://127.0.0.1:")
        assert "node 0 was sent SIGTERM" in out
        until(lambda: not any(map(psutil.pid_exists, both)))


class TestNodes:
    """The process that requests nodes, each by a job, which runs on this machine."""

    @pytest.fixture
    def slurm(self, tmp_path):
        """Return a Slurm of which the second job waits."""
        slurm = SlurmHere(tmp_path / "slurm", free=1)
        yield slurm
        slurm.close()

    @pytest.fixture
    def request_folder(self, tmp_path):
        """Return the folder of a request for nodes."""
        folder = tmp_path / "1" / "dask"
        folder.mkdir(parents=True)
        commands = {"find": SLURM.dask_find, "cancel": SLURM.dask_cancel}
        job = {"directives": ["--job-name={name}"], "prologue": ["export FROM=prologue"], "seconds": 600}
        asked = {"cluster": SLURM.dask_cluster, "interface": "lo", **job, **commands}
        (folder / REQUEST).write_text(json.dumps(asked))
        return folder

    @pytest.fixture
    def start(self, slurm, request_folder):
        """Return a function that starts the process below a shell, and returns both with the path of its messages."""
        started = []

        def start():
            words = [*CLIENT, "nodes", request_folder, "--workers", "2", "--min-workers", "1", "--wait", "300"]
            log = request_folder / "messages"
            with log.open("wb") as messages:
                shell = subprocess.Popen(
                    ["bash", "-c", '"$@" & echo $!; wait $!', "-", *words],
                    env={**os.environ, "PATH": slurm.path}, stdout=subprocess.PIPE, stderr=messages, text=True,
                )  # fmt: skip
            holder = psutil.Process(int(shell.stdout.readline()))
            started.append((shell, holder))
            return shell, holder, log

        yield start
        for shell, holder in started:
            shell.kill()
            with suppress(psutil.NoSuchProcess):
                holder.kill()
            shell.communicate()

    def test_nodes_are_requested_awaited_used_and_released(self, slurm, request_folder, start):
        shell, holder, log = start()
        nodes = request_folder / NODES
        until(lambda: "1 of 2 nodes" in log.read_text() or nodes.exists())
        assert len(slurm.submitted) == len(slurm.running) == 2
        time.sleep(1)
        assert not nodes.exists()
        slurm.go()
        until(nodes.exists)
        assert [line.split()[0] for line in nodes.read_text().splitlines()] == ["127.0.0.1"] * 2
        command = "{ echo $NODE_RANK $FROM; exit; }\n"
        words = [*CLIENT, "each-node", request_folder, "--together"]
        printed = subprocess.check_output(words, input=command, text=True)
        kept = (request_folder.parent / "stdout.log").read_text()
        assert sorted(printed.splitlines()) == sorted(kept.splitlines()) == ["0 prologue", "1 prologue"]
        holder.terminate()
        assert shell.wait(300) == 0
        assert len(slurm.submitted) == 2
        until(lambda: not slurm.running)

    def test_jobs_end_if_caller_is_killed(self, slurm, start):
        shell, holder, log = start()
        until(lambda: "1 of 2 nodes" in log.read_text())
        assert len(slurm.running) == 2
        shell.kill()
        until(lambda: not slurm.running, limit=100)
        until(lambda: not holder.is_running() or holder.status() == psutil.STATUS_ZOMBIE)


class TestCancelJobs:
    @pytest.fixture
    def scheduler(self, tmp_path, monkeypatch):
        """Return a function that makes a scheduler whose jobs end after so many cancellations."""

        def scheduler(jobs, *, cancellations=1, asked=new_name):
            asked(tmp_path)
            for name, code in {
                "find": f'[ "$1" = "$(cat {tmp_path}/name)" ] || exit 9; cat {tmp_path}/jobs',
                "cancel": f'echo "$*" >>{tmp_path}/said; '
                f"[ $(wc --lines <{tmp_path}/said) -lt {cancellations} ] || : >{tmp_path}/jobs; exit 1",
            }.items():
                path = tmp_path / name
                path.write_text(f"#!/bin/bash\n{code}\n")
                path.chmod(0o755)
            (tmp_path / "jobs").write_text(jobs)
            (tmp_path / "said").touch()
            return Request(
                "SLURMCluster", [], [], "", 60, [str(tmp_path / "find"), "{name}"], [str(tmp_path / "cancel")]
            )

        monkeypatch.setattr(time, "sleep", lambda _: None)
        return scheduler

    def test_jobs_are_cancelled_by_name_until_they_end(self, scheduler, tmp_path):
        cancel_jobs(scheduler("11\n12.head\n", cancellations=3), tmp_path)
        assert (tmp_path / "said").read_text() == "11 12.head\n" * 3

    def test_no_job_is_cancelled_without_job_name(self, scheduler, tmp_path):
        cancel_jobs(scheduler("11\n", asked=lambda _: None), tmp_path)
        assert (tmp_path / "said").read_text() == ""

    def test_jobs_that_do_not_end_are_reported(self, scheduler, tmp_path):
        with refused("jobs-left", "11", "dask-", tmp_path / "cancel"):
            cancel_jobs(scheduler("11\n", cancellations=99), tmp_path)

    def test_failing_or_missing_queue_command_is_reported(self, scheduler, tmp_path):
        request = scheduler("11\n")
        (tmp_path / "find").write_text("#!/bin/bash\necho no controller >&2\nexit 1\n")
        with refused("scheduler-silent", tmp_path / "find", "no controller"):
            cancel_jobs(request, tmp_path)
        (tmp_path / "find").unlink()
        with refused("scheduler-silent", tmp_path / "find", "No such file or directory"):
            cancel_jobs(request, tmp_path)

    def test_new_job_name_has_at_most_15_characters(self, tmp_path):
        assert len(new_name(tmp_path)) <= 15


@pytest.mark.parametrize("text", ["", "{}", '{"cluster": 3}', "[]", "{" * 100_000])
def test_malformed_request_file_is_refused(tmp_path, text):
    (tmp_path / REQUEST).write_text(text)
    with refused("bad-record", tmp_path / "request.json"):
        Request.read(tmp_path)


def test_folder_path_with_space_is_refused(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    with refused("bad-path", repr(str(folder)), "SLIPWAY_OUTPUT"):
        make_security(folder)
    assert [*folder.iterdir()] == []
