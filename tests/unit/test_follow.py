"""`jobgen list`, `status`, `logs`, `cancel`: local run folders, and schedulers that answer as the real ones do."""

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from jobgen import JobgenError, SubmittedRun
from jobgen.cli import main, parser
from jobgen.follow.listing import _lines
from jobgen.jobs.runs import Run
from messages import assert_error, assert_names, assert_warning
from slipway.base import contract

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return an empty working directory, with no scheduler on PATH except those that ``program`` adds."""
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    for name in ("SLIPWAY_OUTPUT", "SLIPWAY_SITE", "SLIPWAY_SITES", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def program(folder, name, script):
    path = folder / "bin" / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def make_attempt(run, number, *, job="local 20261121-210842-7", code=None):
    """Write what a job script leaves in ``logs/N``."""
    log = run / "logs" / str(number)
    log.mkdir(parents=True)
    (log / "job").write_text(f"{job}\n")
    (log / "stderr.log").write_text("a warning\n")
    if code is not None:
        (log / "code").write_text(f"{code}\n")
    return log


def make_run(folder, name="ddp-7", *, state="running", job="local 20261121-210842-7", alive=True, **status):
    """Write the run folder of a job whose first attempt has reached step 50."""
    run = folder / "runs" / name
    make_attempt(run, 1, job=job)
    (run / "status.json").write_text(json.dumps({"attempt": 1, "state": state, "reason": "", "step": 40, **status}))
    record = {"kind": "train", "step": 50, "epoch": 1.25, "loss": 0.5, "samples_per_second": 99.0}
    (run / "metrics.jsonl").write_text(json.dumps(record) + '\n{"half a l')
    if state == "running":
        (run / "lock").write_text(json.dumps({"job_id": "7", "pid": 1}))
        beat(run, age=0 if alive else 300)
    return run


@pytest.fixture
def run(here):
    """Return the run folder of a local run that is training."""
    return make_run(here)


def at(path, text):
    """Set a file's modification time, if it exists."""
    if path.exists():
        stamp = time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))
        os.utime(path, (stamp, stamp))


def beat(run, *, age):
    stamp = time.time() - age
    os.utime(run / "lock", (stamp, stamp))


def counted(counts, name, function, *, below):
    """Wrap a function so that its calls for paths below a folder are counted."""

    def called(path=".", *rest, **named):
        found = Path(os.fspath(path)).absolute() if not isinstance(path, int) else Path("/")
        if below in found.parents:
            counts[name, str(found.relative_to(below))] += 1
        return function(path, *rest, **named)

    return called


def said(capsys, *words, code=0):
    assert main(list(words)) == code
    return capsys.readouterr()


def logs(*words):
    """Start ``jobgen logs``, which Ctrl-C must end even if the test process ignores it."""
    command = ["/usr/bin/env", "--default-signal=INT", sys.executable, "-m", "jobgen", "logs", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)


def refused(capsys, slug, *values, words):
    """Assert that a command exits with 78 and a one-line error with this slug."""
    out, err = said(capsys, *words, code=78)
    assert_error(err, slug, *values)
    assert (out, err.count("\n"), err[:8]) == ("", 1, "jobgen: ")


def facts(capsys, *names):
    """Return what ``jobgen status --json`` reports of each run, except path and line."""
    found = json.loads(said(capsys, "status", "--json", *names).out)
    return [(run["state"], run["slug"], run["attempt"], run["step"]) for run in found]


class TestLocalRuns:
    def test_status_without_name_shows_most_recently_changed_run(self, here, capsys):
        old = make_run(here, "old-1", state="done")
        for path in (old / "status.json", old / "metrics.jsonl", old / "logs" / "1"):
            os.utime(path, (1, 1))
        run = make_run(here)
        os.utime(run, (1, 1))
        line = "attempt 1 running, step 50, epoch 1.2, loss 0.5, 99 samples/s"
        log = f"{run.relative_to(here)}/logs/1/stderr.log"
        assert said(capsys, "status").out == f"run runs/ddp-7: {line}\nlog {log}\n"
        assert json.loads(said(capsys, "status", "--json").out) == [
            {"path": "runs/ddp-7", "state": "running", "slug": "", "attempt": 1, "step": 50, "line": line}
        ]

    @pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["cancel"], ["logs"]])
    @pytest.mark.parametrize("state", ["running", "done"])
    def test_each_run_file_is_read_once(self, here, monkeypatch, words, state):
        """However many parts the answer has: metadata servers are slow and shared."""
        run = make_run(here, state=state)
        make_attempt(run, 2, job="local 20261121-210842-8")
        (run / "requeues").write_text("1 7\n")
        counts = Counter()
        for name in ("open", "listdir"):
            monkeypatch.setattr(os, name, counted(counts, name, getattr(os, name), below=run))
        main(words if words[0] == "status" else [*words, str(run)])
        assert counts["listdir", "logs"] == counts["open", "status.json"] == 1
        assert {what: count for what, count in counts.items() if count > 1} == {}

    def test_runs_are_searched_in_slipway_output(self, here, capsys, monkeypatch):
        make_run(here, "ddp-7")
        monkeypatch.setenv("SLIPWAY_OUTPUT", "elsewhere")
        refused(capsys, "no-such-run", "elsewhere", words=["status"])
        (here / "runs").rename(here / "elsewhere")
        assert said(capsys, "status").out.startswith("run elsewhere/ddp-7: attempt 1 running")

    @pytest.mark.parametrize(
        ("fields", "files", "expected", "text"),
        [
            ({}, {}, ("running", "", 1, 50), "attempt 1 running, step 50"),
            ({}, {"metrics.jsonl": ""}, ("running", "", 1, 40), "attempt 1 running, step 40"),
            ({"alive": False}, {}, ("crashed", "", 1, 50), "60 s"),
            ({}, {"logs/1/code": "137\n"}, ("crashed", "", 1, 50), "137"),  # and no verdict
            ({"state": "stopped", "reason": "user"}, {}, ("stopped", "user", 1, 50), "(user)"),
            (
                {"state": "failed", "reason": "diverged: the loss"},
                {},
                ("failed", "diverged", 1, 50),
                "(diverged: the loss)",
            ),
            ({"state": "failed", "reason": "oops: mine"}, {}, ("failed", "", 1, 50), "(oops: mine)"),
        ],
    )
    @pytest.mark.usefixtures("here")
    def test_status_reports_state_reason_and_step(self, capsys, fields, files, expected, text):
        run = make_run(Path(), **fields)
        for name, content in files.items():
            (run / name).write_text(content)
        assert facts(capsys, str(run)) == [expected]
        assert text in said(capsys, "status", str(run)).out

    @pytest.mark.parametrize(
        ("verdict", "expected"),
        [
            ("done 60 complete", ("done", "complete", 60)),
            ("out-of-time 60 time-limit", ("out-of-time", "time-limit", 60)),
            ("stopped 60 user", ("stopped", "user", 60)),
            ("failed 12 diverged: the loss", ("failed", "diverged", 50)),
            ("done", ("done", "", 50)),
            ("half a verdict", ("running", "", 50)),
        ],
    )
    def test_verdict_takes_precedence_over_status_file(self, run, capsys, verdict, expected):
        (run / "verdict.1").write_text(f"{verdict}\n")
        state, slug, step = expected
        assert facts(capsys, str(run)) == [(state, slug, 1, step)]
        line = said(capsys, "status", str(run)).out.partition("\n")[0]
        assert line.startswith(f"run {run}: attempt 1 {state}")
        assert f"step {step}, epoch 1.2" in line
        assert (f"({slug}" in line) == (slug not in {"", "complete"})

    @pytest.mark.parametrize("verdict", ["", "failed 12 lost-peer: a rank", "done 60 complete"])
    def test_cause_takes_precedence_over_verdict(self, run, capsys, verdict):
        (run / "logs" / "1" / "cause").write_text("78 cannot-read: node2: [rank 1] no data\n")
        (run / "logs" / "1" / "code").write_text("0\n")
        (run / "verdict.1").write_text(f"{verdict}\n")
        assert [found[:3] for found in facts(capsys, str(run))] == [("failed", "cannot-read", 1)]
        assert "(cannot-read: node2: [rank 1] no data)" in said(capsys, "status", str(run)).out
        assert (Run(run).has_permanent_error, Run(run).is_done) == (True, False)

    @pytest.mark.parametrize("cause", ["", "78", "1 x", "\0", "778 x"])
    def test_malformed_cause_is_ignored(self, here, cause):
        run = make_run(here, state="done")
        (run / "logs" / "1" / "cause").write_text(cause)
        (run / "verdict.1").write_text("done 60 complete\n")
        assert (Run(run).has_permanent_error, Run(run).is_done) == (False, True)

    def test_attempt_before_training_is_distinguished_from_previous_attempt(self, here, capsys):
        run = make_run(here, state="stopped", reason="time-limit")
        make_attempt(run, 2)
        assert facts(capsys, str(run)) == [("starting", "", 2, 50)]
        make_attempt(run, 10, code=78)
        assert facts(capsys, str(run)) == [("failed", "", 10, 50)]
        line, log = said(capsys, "status", str(run)).out.splitlines()
        assert re.findall(r"attempt (\d+)", line) == ["10", "1"]
        assert_names(line, " 78", "stopped (time-limit), step 50")
        assert re.fullmatch(r"log .*logs/10/stderr\.log", log)

    @pytest.mark.parametrize(
        ("kept", "code", "state", "values"),
        [
            ("restore_setting SLIPWAY_SCRIPT my\\ train.py", None, "started", ["script", "2026-11-24 08:09"]),
            ("restore_setting SLIPWAY_SCRIPT my\\ train.py", 0, "done", ["script", " 0,", "2026-11-24 09:10"]),
            ("restore_setting SLIPWAY_SCRIPT my\\ train.py", 3, "failed", ["script", " 3,", "2026-11-24 09:10"]),
            ("restore_setting SLIPWAY_SCRIPT ''", 78, "failed", [" 78, 2026-11-24 09:10"]),
            ("restore_setting SLIPWAY_CONFIG x", 78, "failed", [" 78, 2026-11-24 09:10"]),
            ("echo restore_setting SLIPWAY_SCRIPT x", 78, "failed", [" 78, 2026-11-24 09:10"]),
        ],
    )
    @pytest.mark.usefixtures("here")
    def test_run_without_status_file_is_judged_by_script_and_code(self, capsys, kept, code, state, values):
        log = make_attempt(Path("runs/ddp-7"), 1, code=code)
        Path("runs/ddp-7/job.sh").write_text(f"{kept}\n")
        at(log / "job", "2026-11-24 08:09:10")
        at(log / "code", "2026-11-24 09:10:11")
        assert facts(capsys) == [(state, "", 1, 0)]
        line = said(capsys, "status").out.partition("\n")[0]
        assert line.startswith("run runs/ddp-7: attempt 1")
        assert_names(line, *values)
        assert ("script" in line) == (state != "failed" or code == 3)

    def test_attempt_before_launch_has_state_starting(self, here, capsys):
        log = make_attempt(here / "runs" / "ddp-7", 1)
        (log / "stderr.log").unlink()
        at(log / "job", "2026-11-24 08:09:10")
        assert facts(capsys) == [("starting", "", 1, 0)]
        assert re.fullmatch(r"run runs/ddp-7: attempt 1 .* 2026-11-24 08:09\n", said(capsys, "status").out)

    def test_run_folder_without_attempt_has_state_empty(self, here, capsys):
        (here / "runs" / "empty").mkdir(parents=True)
        assert facts(capsys) == [("empty", "", 0, 0)]
        assert said(capsys, "status").out.startswith("run runs/empty: ")

    def test_heartbeat_age_uses_clock_of_file_server(self, run, capsys, monkeypatch):
        monkeypatch.setattr(time, "time", lambda: 2e9 + 1000)  # this host's clock is years ahead
        assert facts(capsys, str(run)) == [("running", "", 1, 50)]
        assert list(run.rglob(".now.*")) == []
        beat(run, age=time.time() - run.stat().st_mtime + 300)
        assert facts(capsys, str(run)) == [("crashed", "", 1, 50)]

    def test_status_works_in_read_only_run_folder(self, here, capsys, monkeypatch):
        def refuse(**_):
            raise PermissionError

        monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
        run = make_run(here)
        assert facts(capsys, str(run)) == [("running", "", 1, 50)]
        beat(run, age=300)
        assert facts(capsys, str(run)) == [("crashed", "", 1, 50)]

    def test_status_reads_only_end_of_huge_metrics_file(self, run, capsys):
        with (run / "metrics.jsonl").open("wb") as file:
            file.seek(1 << 40)  # a sparse file of one terabyte
            file.write(b'x"}\n{"step": 70, "loss": 2.5}\n{"step": 8')
        assert "step 70, loss 2.5\n" in said(capsys, "status", str(run)).out

    @pytest.mark.parametrize(
        ("record", "expected"),
        [
            ('{"step": 7, "epoch": "one", "loss": null}', "step 40\n"),
            ('{"step": 70, "loss": NaN, "accuracy": 0.5}', "step 70, loss nan, accuracy 50.00 %\n"),
            ('{"step": 1e400, "loss": ' + "9" * 400 + "}", "step 40\n"),
            ("[1, 2]", "step 40\n"),
            ("[" * 100_000, "step 40\n"),
        ],
    )
    def test_malformed_metrics_are_ignored(self, run, capsys, record, expected):
        (run / "metrics.jsonl").write_text(f"{record}\n")
        assert expected in said(capsys, "status", str(run)).out

    def test_malformed_run_files_are_ignored(self, run, capsys):
        (run / "metrics.jsonl").unlink()
        os.mkfifo(run / "metrics.jsonl")
        (run / "status.json").unlink()
        (run / "status.json").mkdir()
        (run / "verdict.1").write_bytes(b"\xff\xfe\0")
        (run / "logs" / "1" / "job").write_bytes(b"slurm -u root\n")
        (run / "logs" / "stray").touch()
        assert facts(capsys, str(run)) == [("started", "", 1, 0)]
        assert said(capsys, "status", str(run)).out.startswith(f"run {run}: attempt 1 ")

    def test_control_characters_in_run_files_are_escaped(self, here, capsys):
        run = make_run(here, state="failed", reason="\x1b]0;title\x07\n\u202e and \x9b31m")
        out = said(capsys, "status", str(run)).out
        assert r"failed (\x1b]0;title\x07\n\u202e and \x9b31m)" in out
        assert not set(out) & set("\x1b\x07\x9b\u202e")

    def test_cancel_writes_stop_file_of_local_run(self, run, capsys):
        err = said(capsys, "cancel", str(run)).err
        assert re.fullmatch(rf"jobgen: {run} .*STOP.*\n", err)
        assert (run / "STOP").read_text() == "user\n"
        assert "STOP" in said(capsys, "status", str(run)).out

    def test_cancel_warns_if_script_may_not_check_for_stop(self, here, capsys):
        make_attempt(here / "runs" / "ddp-7", 1)
        assert_names(said(capsys, "cancel", "runs/ddp-7").err, "runs/ddp-7", "STOP", "script", "Ctrl-C")

    @pytest.mark.parametrize(
        ("state", "files"),
        [
            ("done", {}),
            ("running", {"verdict.1": "done 50 complete\n"}),
            ("running", {"logs/1/code": "1\n"}),
        ],
    )
    def test_cancel_of_ended_run_is_refused(self, here, capsys, state, files):
        run = make_run(here, state=state)
        for name, content in files.items():
            (run / name).write_text(content)
        refused(capsys, "already-ended", run, words=["cancel", str(run)])
        assert not (run / "STOP").exists()

    def test_log_is_followed_until_run_ends(self, run):
        with logs("--follow", run) as process:
            assert process.stdout.readline() == b"a warning\n"
            with (run / "logs" / "1" / "stderr.log").open("a") as file:
                file.write("another\n")
            assert process.stdout.readline() == b"another\n"
            make_attempt(run, 2)
            assert process.stdout.readline() == b"a warning\n"
            (run / "logs" / "2" / "code").write_text("0\n")
            assert process.wait(300) == 0

    def test_truncated_log_is_followed_from_beginning(self, run, monkeypatch, capfdbinary):
        log = run / "logs" / "1" / "stderr.log"

        def overwrite(_seconds):
            log.write_text("anew\n")
            (run / "logs" / "1" / "code").write_text("0\n")

        monkeypatch.setattr(time, "sleep", overwrite)
        assert main(["logs", "--follow", str(run)]) == 0
        assert capfdbinary.readouterr().out == b"a warning\nanew\n"

    def test_ctrl_c_ends_logs_without_traceback(self, run):
        with logs("--follow", run) as process:
            assert process.stdout.readline() == b"a warning\n"
            process.send_signal(signal.SIGINT)
            assert (process.wait(300), process.stderr.read()) == (130, b"")

    def test_closed_pipe_ends_logs_without_traceback(self, run):
        (run / "logs" / "1" / "stderr.log").write_bytes(b"x" * (1 << 20))
        with logs(run) as process:
            process.stdout.close()
            assert (process.wait(300), process.stderr.read()) == (141, b"")

    def test_cancel_fails_if_stop_is_a_folder(self, run, capsys):
        (run / "STOP").mkdir()
        refused(capsys, "cannot-write", f"{run}/STOP", os.strerror(errno.EISDIR), words=["cancel", str(run)])

    @pytest.mark.parametrize(
        ("words", "slug", "values"),
        [
            (["status", "nowhere"], "no-such-run", ["'nowhere'"]),
            (["status", "--json", "nowhere"], "no-such-run", ["'nowhere'"]),
            (["status", "12;rm"], "no-such-run", ["'12;rm'"]),
            (["status", "40_[1-3]"], "no-such-run", ["'40_[1-3]'"]),
            (["status"], "no-such-run", [" runs", "SLIPWAY_OUTPUT"]),
            (["logs", "12"], "no-such-job", ["job 12"]),
        ],
    )
    @pytest.mark.usefixtures("here")
    def test_unknown_runs_and_jobs_are_refused(self, capsys, words, slug, values):
        refused(capsys, slug, *values, words=words)

    def test_local_run_is_found_by_date_in_its_name(self, here, capsys):
        make_run(here, "ddp-local-20261121-210842-7")
        assert said(capsys, "status", "20261121-210842-7").out.startswith("run runs/ddp-local-20261121-210842-7: ")


@pytest.mark.usefixtures("here")
def test_status_reports_goodput_of_run(here, capsys):
    run = make_run(here, state="done")
    line = {"attempt": 1, "time": 150.0, "step": 9, "trained": 40.0, "waited": 0.0, "evaluated": 0.0, "saved": 0.0}
    lines = [{"attempt": 1, "began": 100.0, "nodes": 2, "spares": 0}, {**line, "started": 5.0}]
    (run / "goodput.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert said(capsys, "status").out.splitlines()[1] == "    time: 50 s in 1 attempt: 80.0 % trained, 20.0 % started"


@pytest.mark.usefixtures("here")
def test_status_of_script_without_session_has_no_goodput(here, capsys):
    run = make_run(here, state="done")
    lines = [{"attempt": 1, "began": 100.0, "nodes": 2, "spares": 0}, {"attempt": 1, "ended": 150.0}]
    (run / "goodput.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "time:" not in said(capsys, "status").out


ACCOUNT = {"nodes": 2, "count": 4, "unit": "GPU", "seconds": 4500, "gpus_seen": 8, "busy": 87, "memory": 31744,
           "memory_total": 81559}  # fmt: skip


def leave_account(run, number, **changed):
    (run / "logs" / str(number) / "account.json").write_text(json.dumps({**ACCOUNT, **changed}))


class TestAccount:
    @pytest.mark.parametrize(
        ("accounts", "expected"),
        [
            ([{}], "used 2 nodes x 4 GPUs x 1.25 h = 10.0 GPU-hours; GPUs 87 % busy, 31 of 80 GiB at most"),
            (
                [{}, {"nodes": 1, "seconds": 9000, "gpus_seen": 4, "busy": 27, "memory": 40000}],
                "used 20.0 GPU-hours in 2 attempts; GPUs 57 % busy, 39 of 80 GiB at most",
            ),
            (
                [{}, {"unit": "core", "count": 8, "seconds": 360, "gpus_seen": 0}],
                "used 10.0 GPU-hours and 1.60 core-hours in 2 attempts; GPUs 87 % busy, 31 of 80 GiB at most",
            ),
            ([{"gpus_seen": 0}, None], "used 10.0 GPU-hours in 1 of 2 attempts"),  # the second was killed
        ],
    )
    def test_resource_use_is_summed_over_attempts(self, here, capsys, accounts, expected):
        run = make_run(here, state="done")
        for number, changed in enumerate(accounts, 1):
            if number > 1:
                make_attempt(run, number)
            if changed is not None:
                leave_account(run, number, **changed)
        never_launched = make_attempt(run, len(accounts) + 1)
        (never_launched / "stderr.log").unlink()
        assert said(capsys, "status").out.splitlines()[1:] == [f"    {expected}"]

    def test_resource_use_is_summed_over_array_tasks(self, here, capsys):
        for task in (1, 2, 3):
            leave_account(
                make_run(here, f"ddp-40_{task}", job=f"slurm 40_{task}", state="done"), 1, nodes=1, gpus_seen=3
            )
        line = said(capsys, "status", "40").out.splitlines()[-1]
        assert line.startswith("all runs:")
        assert_names(line, "15.0 GPU-hours", " 3 ", "87 %", "31 of 80 GiB", "(")  # (of the GPUs that could be read)

    @pytest.mark.parametrize(
        "text",
        ["", "{}", "[]", '{"nodes": 1}', "\xff", json.dumps({**ACCOUNT, "nodes": -1}),
         json.dumps({**ACCOUNT, "unit": "x"}), json.dumps({**ACCOUNT, "seconds": "9"}),
         json.dumps({**ACCOUNT, "busy": 10**400})],
    )  # fmt: skip
    def test_malformed_account_file_is_ignored(self, here, capsys, text):
        run = make_run(here, state="done")
        (run / "logs" / "1" / "account.json").write_text(text)
        assert "used" not in said(capsys, "status").out


SLURM_JOB = (
    "JobId=12 JobName=ddp UserId=a(1) JobState={state} Reason={reason} Restarts={restarts} RunTime=00:00:09 "
    "TimeLimit=01:00:00 ExitCode=0:0 NodeList=node[1-2] Command=(null) WorkDir={here} StdOut={here}/my log.out Power="
)
SLURM_TASKS = (
    "JobId=40 ArrayJobId=40 ArrayTaskId=10-20%2 JobName=ddp JobState=PENDING Reason=Resources TimeLimit=01:00:00 "
    "WorkDir={here} StdOut={here}/slurm-40_4294967294.out\n"
    "JobId=49 ArrayJobId=40 ArrayTaskId=9 JobName=ddp JobState=RUNNING Reason=None RunTime=00:00:09 "
    "TimeLimit=01:00:00 NodeList=node1 WorkDir={here} StdOut={here}/slurm-40_9.out"
)
AWAY = "Unable to contact slurm controller"
PBS_AWAY = "qstat: cannot connect to server head (errno=111)"
FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


def slurm_answers(here, *, state="RUNNING", reason="None", restarts=0):
    job = SLURM_JOB.format(state=state, reason=reason, restarts=restarts, here=here)
    program(here, "scontrol", f"echo '{job}'")


class TestSlurm:
    def test_status_shows_slurm_job_run_and_log(self, here, capsys):
        slurm_answers(here)
        make_run(here, "ddp-12", job="slurm 12")
        (here / "my log.out").write_text("hello\n")
        lines = said(capsys, "status", "12").out.splitlines()
        assert lines[0] == "job 12: RUNNING on node[1-2] for 00:00:09 of 01:00:00"
        assert lines[1].startswith("run runs/ddp-12: attempt 1 running")
        assert lines[2] == f"log {here}/my log.out"
        assert said(capsys, "logs", "runs/ddp-12").out == "hello\n"

    @pytest.mark.parametrize(
        ("job", "line"),
        [
            ({"state": "PENDING", "reason": "Resources"}, "job 12: PENDING because of Resources"),
            ({"restarts": 2}, "job 12: RUNNING on node[1-2] for 00:00:09 of 01:00:00, 2 restart(s)"),
        ],
    )
    def test_status_shows_pending_reason_and_restarts(self, here, capsys, job, line):
        slurm_answers(here, **job)
        assert said(capsys, "status", "12").out.partition("\n")[0] == line

    def test_logs_follow_waits_for_log_of_pending_job(self, here, capfd, monkeypatch):
        slurm_answers(here, state="PENDING", reason="Resources")

        def begin_and_end(_seconds):
            slurm_answers(here, state="COMPLETED")
            (here / "my log.out").write_text("hello\n")

        monkeypatch.setattr(time, "sleep", begin_and_end)
        monkeypatch.setattr("jobgen.follow.commands.ASK", 0)
        assert main(["logs", "--follow", "12"]) == 0
        out, err = capfd.readouterr()
        assert out == "hello\n"
        assert re.fullmatch(r"jobgen: job 12 .*PENDING.*Resources.*\n", err)

    def test_logs_of_job_without_log_are_refused(self, here, capsys):
        slurm_answers(here, state="COMPLETED")
        refused(capsys, "no-log", "job 12", words=["logs", "12"])

    @pytest.mark.parametrize("words", [["cancel"], ["status"], ["logs"], ["list"]])
    def test_words_after_dashes_are_refused(self, here, capsys, words):
        """They are no names of jobs: without a name the command would take another job."""
        slurm_answers(here)
        with pytest.raises(SystemExit) as end:
            main([*words, "--", "12"])
        assert end.value.code == 2
        assert_error(capsys.readouterr().err, "bad-arguments", "12")

    @pytest.mark.parametrize("answer", ["JobId=12", "JobId=12 ArrayTaskId=1", "garbage"])
    def test_answer_that_is_no_job_is_refused(self, here, capsys, answer):
        program(here, "scontrol", f"echo '{answer}'")
        refused(capsys, "scheduler-silent", answer, words=["cancel", "12"])

    def test_cancel_fails_if_scancel_fails(self, here, capsys):
        slurm_answers(here)
        program(here, "scancel", "echo 'Access denied' >&2; exit 1")
        assert said(capsys, "cancel", "12", code=1).err == ""

    def test_job_takes_precedence_over_run_folder_with_same_number(self, here, capsys):
        slurm_answers(here)
        make_run(here, "ddp-12", job="slurm 7")
        assert said(capsys, "status", "12").out.startswith("job 12: RUNNING")
        program(here, "scontrol", FORGOTTEN)
        assert "run runs/ddp-12: attempt 1 running" in said(capsys, "status", "12").out
        assert facts(capsys, "12") == [("running", "", 1, 50)]

    def test_slurm_job_is_cancelled_by_scancel(self, here, capsys):
        slurm_answers(here)
        program(here, "scancel", f'echo "$@" >{here}/cancelled')
        assert re.fullmatch(r"jobgen: job 12: scancel .*\n", said(capsys, "cancel", "12").err)
        assert (here / "cancelled").read_text() == "12\n"

    def test_forgotten_job_without_accounting_is_found_by_run_folder(self, here, capsys):
        program(here, "scontrol", FORGOTTEN)
        program(here, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
        refused(capsys, "no-such-job", "slurm", "job 12", words=["status", "12"])
        make_run(here, "ddp-12", state="done", job="slurm 12")
        lines = said(capsys, "status", "12").out.splitlines()
        assert lines[0].startswith("job 12: slurm ")
        assert lines[1].startswith("run runs/ddp-12: attempt 1 done")
        assert said(capsys, "logs", "12").out == "a warning\n"

    def test_forgotten_job_is_found_by_sacct(self, here, capsys):
        program(here, "scontrol", FORGOTTEN)
        program(here, "sacct", f"echo '12|CANCELLED by 1000|0:15|node[1-2]|00:01:00|01:00:00|{here}'")
        (here / "slurm-12.out").write_text("it was\n")
        expected = "job 12: CANCELLED after 00:01:00 of 01:00:00 on node[1-2], exit code 0:15\n"
        assert said(capsys, "status", "12").out == f"{expected}log {here}/slurm-12.out\n"
        assert said(capsys, "logs", "--follow", "12").out == "it was\n"

    @pytest.mark.parametrize(
        ("name", "script", "values"),
        [
            ("scontrol", f"printf 'fatal:\\n{AWAY}\\n' >&2; exit 1", ["Slurm", f"fatal:; {AWAY}"]),
            ("qstat", f"echo '{PBS_AWAY}' >&2; exit 111", ["PBS", PBS_AWAY]),
        ],
    )
    def test_unreachable_scheduler_is_not_reported_as_unknown_job(self, here, capsys, name, script, values):
        program(here, name, script)
        refused(capsys, "scheduler-silent", "job 12", *values, words=["status", "12"])

    def test_hanging_scheduler_command_times_out(self, here, capsys, monkeypatch):
        monkeypatch.setattr("jobgen.base.queue.LIMIT", 0.2)
        program(here, "scontrol", "exec /usr/bin/sleep 20")
        refused(capsys, "scheduler-silent", "Slurm", "job 12", "scontrol", "0 s", words=["status", "12"])

    def test_status_uses_run_folder_if_scheduler_is_unreachable(self, here, capsys):
        program(here, "scontrol", f"echo '{AWAY}' >&2; exit 1")
        make_run(here, "ddp-12", job="slurm 12")
        lines = said(capsys, "status", "12").out.splitlines()
        assert_warning(lines[0], "scheduler-silent", "Slurm", "job 12", AWAY)
        assert lines[1].startswith("run runs/ddp-12: attempt 1 running")
        assert facts(capsys, "12") == [("running", "", 1, 50)]
        refused(capsys, "scheduler-silent", "Slurm", "job 12", words=["cancel", "12"])
        assert not (here / "runs" / "ddp-12" / "STOP").exists()

    def test_run_folder_is_used_if_scheduler_commands_are_missing(self, here, capsys):
        run = make_run(here, "ddp-12", job="slurm 12")
        assert said(capsys, "status", "12").out.startswith("job 12: slurm ")
        said(capsys, "cancel", "12")
        assert (run / "STOP").read_text() == "user\n"

    def test_run_continued_by_later_job_is_found_by_both(self, here, capsys):
        slurm_answers(here)
        run = make_run(here, "ddp-7", state="stopped", job="slurm 7")
        make_attempt(run, 2, job="slurm 12")
        assert "job 12: RUNNING" in said(capsys, "status", str(run)).out
        assert facts(capsys, "12") == facts(capsys, "7") == [("starting", "", 2, 50)]
        assert re.search(r"\n    .*\bjob 12\n", said(capsys, "status", "7").out)


class TestSlurmArray:
    @pytest.fixture(autouse=True)
    def slurm(self, here):
        tasks = SLURM_TASKS.format(here=here)
        one = tasks.splitlines()[1]
        program(here, "scontrol", f"case $4 in 40) echo '{tasks}' ;; 40_9) echo '{one}' ;; *) {FORGOTTEN} ;; esac")
        program(here, "scancel", f'echo "$@" >{here}/cancelled')
        make_run(here, "ddp-40_9", job="slurm 40_9")

    @pytest.fixture
    def two_runs(self, here):
        make_run(here, "ddp-40_2", job="slurm 40_2", state="done")

    @pytest.mark.parametrize("name", ["40_9", "runs/ddp-40_9"])
    def test_status_log_and_cancel_of_one_array_task(self, here, capsys, name):
        make_run(here, "ddp-40_99", job="slurm 40_99")
        (here / "slurm-40_9.out").write_text("nine\n")
        lines = said(capsys, "status", name).out.splitlines()
        assert lines[0] == "job 40_9: RUNNING on node1 for 00:00:09 of 01:00:00"
        assert lines[1].startswith("run runs/ddp-40_9: attempt 1 running")
        assert lines[2:] == [f"log {here}/slurm-40_9.out"]
        assert said(capsys, "logs", name).out == "nine\n"
        said(capsys, "cancel", name)
        assert (here / "cancelled").read_text() == "40_9\n"

    def test_unknown_array_task_is_refused(self, here, capsys):
        program(here, "scontrol", 'echo "Job $4 not found"; exit 1')  # as Slurm 22.05 does
        refused(capsys, "no-such-job", "slurm", "job 40_7", words=["status", "40_7"])

    @pytest.mark.usefixtures("two_runs")
    def test_status_and_cancel_of_whole_array(self, here, capsys):
        *tasks, done, running = said(capsys, "status", "40").out.splitlines()
        assert tasks == [
            "job 40_10-20%2: PENDING because of Resources",
            "job 40_9: RUNNING on node1 for 00:00:09 of 01:00:00",
        ]
        assert done.startswith("run runs/ddp-40_2: attempt 1 done")
        assert running.startswith("run runs/ddp-40_9: attempt 1 running")
        assert [found[0] for found in facts(capsys, "40")] == ["done", "running"]
        refused(capsys, "several-runs", "job 40", " 2 ", "runs/ddp-40_2, runs/ddp-40_9", words=["logs", "40"])
        said(capsys, "cancel", "40")
        assert (here / "cancelled").read_text() == "40\n"

    @pytest.mark.usefixtures("two_runs")
    def test_status_without_name_shows_all_tasks_of_newest_array(self, capsys):
        lines = said(capsys, "status").out.splitlines()
        assert [line.split(":")[0] for line in lines[2:]] == ["run runs/ddp-40_2", "run runs/ddp-40_9"]

    # regression: only the run of the first task that Slurm named
    @pytest.mark.usefixtures("two_runs")
    def test_all_runs_of_array_are_found_in_submission_folder(self, here, capsys, monkeypatch):
        (here / "other").mkdir()
        monkeypatch.chdir(here / "other")
        nine = SLURM_TASKS.format(here=here).splitlines()[1]
        program(here, "scontrol", f"echo '{nine}'")
        lines = said(capsys, "status", "40").out.splitlines()
        assert [line.split(":")[0] for line in lines[1:]] == [f"run {here}/runs/ddp-40_2", f"run {here}/runs/ddp-40_9"]

    def test_run_is_found_in_folder_given_in_job_log(self, here, capsys):
        run = make_run(here, "ddp-12", job="slurm 12")
        (here / "runs").rename(here / "scratch")
        slurm_answers(here)
        said_first = f"a prologue\nddp.job: attempt 1 in {here}/scratch/ddp-12, library 0.1.0 (sha256 0123456789ab)\n"
        (here / "my log.out").write_text(said_first)
        assert f"run {here}/scratch/{run.name}: attempt 1 running" in said(capsys, "status", "12").out
        program(here, "squeue", "exit 0")
        refused(capsys, "no-such-run", " runs", "SLIPWAY_OUTPUT", words=["status"])
        (here / "my log.out").unlink()
        os.mkfifo(here / "my log.out")
        assert "job 12: RUNNING" in said(capsys, "status", "12").out

    def test_run_is_found_in_submission_folder(self, here, capsys, monkeypatch):
        (here / "other").mkdir()
        monkeypatch.chdir(here / "other")
        assert f"run {here}/runs/ddp-40_9: attempt 1 running" in said(capsys, "status", "40_9").out


class TestManyTasks:
    """Tasks are counted by state; failed tasks are named."""

    @pytest.fixture(autouse=True)
    def slurm(self, here):
        states = {1: "RUNNING", **dict.fromkeys(range(2, 80), "COMPLETED"), **dict.fromkeys(range(80, 92), "TIMEOUT")}
        lines = [
            f"JobId={task} ArrayJobId=40 ArrayTaskId={task} JobName=ddp JobState={state} RunTime=1 TimeLimit=2 "
            f"ExitCode=0:0 NodeList=n1 WorkDir={here} StdOut={here}/slurm-40_{task}.out"
            for task, state in states.items()
        ]
        lines.append("JobId=40 ArrayJobId=40 ArrayTaskId=100-299%9 JobName=ddp JobState=PENDING Reason=Resources")
        (here / "jobs").write_text("\n".join(lines) + "\n")
        program(here, "scontrol", "exec /bin/cat jobs")
        for task in range(1, 92):
            state = "running" if task == 1 else "failed" if task > 79 else "done"
            make_run(here, f"ddp-40_{task}", job=f"slurm 40_{task}", state=state, reason="nan" if task > 79 else "")

    def test_many_tasks_are_counted_by_state_and_failures_listed(self, here, capsys):
        lines = said(capsys, "status", "40").out.splitlines()
        assert lines[:2] == [
            "291 tasks: 200 PENDING, 78 COMPLETED, 12 TIMEOUT, 1 RUNNING",
            "job 40_80: TIMEOUT after 1 of 2 on n1, exit code 0:0",
        ]
        assert [line.split(":")[0] for line in lines[2:11]] == [f"job 40_{task}" for task in range(81, 90)]
        assert lines[11:13] == ["    failed, too: 40_90, 40_91", "91 runs in runs: 78 done, 12 failed, 1 running"]
        assert lines[13].startswith("run runs/ddp-40_80: attempt 1 failed (nan), step 50")
        assert lines[23:] == ["    failed, too: ddp-40_90, ddp-40_91"]


PBS_JOB = """Job Id: {job}
    Job_Name = ddp
    job_state = {state}
    exec_host = node1/0*8+node2/0*8
    Output_Path = login:{here}/ddp.o12{index}
    Resource_List.walltime = 01:00:00
    resources_used.walltime = 00:00:09
    Exit_status = 75
    Variable_List = PBS_O_HOME=/home/a,PBS_O_WORKDIR={head}
\t{tail},PBS_O_QUEUE=work
"""
PBS_ARRAY = """Job Id: 12[].server
    job_state = B
    array = True
    array_state_count = Queued:1 Running:1 Exiting:0 Expired:0 
    array_indices_submitted = 1-2

"""  # noqa: W291 -- qstat's own blank
NOT_KNOWN = 'echo "qstat: Unknown Job Id $1" >&2; exit 153'


def pbs_job(here, state, *, job="12.server", index=""):
    text = str(here)  # qstat breaks long lines within words
    return PBS_JOB.format(job=job, state=state, here=here, head=text[:4], tail=text[4:], index=index)


class TestPbs:
    @pytest.mark.parametrize(
        ("state", "expected"),
        [
            ("R", ["node1, node2", "00:00:09 of 01:00:00"]),
            ("Q", []),
            ("C", ["node1, node2", "00:00:09 of 01:00:00", " 75"]),
        ],
    )
    def test_status_shows_pbs_job_and_run(self, here, capsys, state, expected):
        program(here, "qstat", f"echo '{pbs_job(here, state)}'")
        make_run(here, "ddp-12", job="pbs 12")
        lines = said(capsys, "status", "12.server").out.splitlines()
        assert lines[0].startswith(f"job 12.server: {state} ")
        assert_names(lines[0], *expected)
        assert lines[1].startswith("run runs/ddp-12: ")

    def test_finished_pbs_job_is_found_in_history(self, here, capsys):
        once = "qstat: 12.server Job has finished, use -x or -H to obtain historical job information"
        history = pbs_job(here, "F")
        program(here, "qstat", f"[ \"$1\" = -x ] || {{ echo '{once}' >&2; exit 35; }}\necho '{history}'")
        assert "F after 00:00:09" in said(capsys, "status", "12.server").out

    def test_pbs_job_is_cancelled_by_qdel(self, here, capsys):
        program(here, "qstat", f"echo '{pbs_job(here, 'R')}'")
        program(here, "qdel", f'echo "$@" >{here}/cancelled')
        said(capsys, "cancel", "12")
        assert (here / "cancelled").read_text() == "12.server\n"

    def test_cancel_of_run_cancels_its_waiting_chained_job(self, here, capsys):
        run = make_run(here, "ddp-12", state="stopped", job="pbs 12")
        stamp = time.time() - 60
        os.utime(run / "logs" / "1" / "job", (stamp, stamp))
        (run / "requeues").write_text("1 13\n")
        waiting = pbs_job(here, "H", job="13.server")
        program(here, "qstat", f"[ \"$2\" = 13 ] || {{ {NOT_KNOWN}; }}\necho '{waiting}'")
        program(here, "qdel", f'echo "$@" >{here}/cancelled')
        assert "job 13.server: H " in said(capsys, "status", str(run)).out
        assert f"run {Path('runs/ddp-12')}: attempt 1 stopped" in said(capsys, "status", "13").out
        said(capsys, "cancel", str(run))
        assert (here / "cancelled").read_text() == "13.server\n"


class TestWait:
    """A scheduler that answers otherwise each time it is asked."""

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch):
        monkeypatch.setattr("jobgen.run.submitted.ASK", 0.01)
        monkeypatch.setattr("jobgen.follow.commands.ASK", 0.0)
        monkeypatch.setattr("jobgen.follow.commands.POLL", 0.01)

    @staticmethod
    def answers(here, name, *scripts):
        """Write a program that runs the next of ``scripts`` at each call, and the last one from then on."""
        for number, script in enumerate(scripts, start=1):
            program(here, f"{name}.{number}", script)
        count = f'n=$(<{here}/{name}); n=$((n < {len(scripts)} ? n + 1 : n)); echo "$n" >{here}/{name}'
        (here / name).write_text("0\n")
        program(here, name, f'{count}; exec {here}/bin/{name}."$n" "$@"')

    def test_scheduler_that_does_not_answer_is_asked_again(self, here):
        job = SLURM_JOB.format(state="RUNNING", reason="None", restarts=0, here=here)
        ended = f"echo '{job.replace('RUNNING', 'COMPLETED')}'"
        self.answers(here, "scontrol", f"echo '{job}'", f"echo '{AWAY}' >&2; exit 1", f"echo '{job}'", ended)
        make_run(here, "ddp-12", state="done", job="slurm 12")
        assert SubmittedRun("12").wait(timeout=30) == "done"

    def test_unknown_job_is_an_error(self, here):
        program(here, "scontrol", FORGOTTEN)
        program(here, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
        with pytest.raises(JobgenError) as error:
            SubmittedRun("12").wait(timeout=30)
        assert error.value.slug == "no-such-job"

    def test_timeout(self, here):
        slurm_answers(here)
        with pytest.raises(TimeoutError):
            SubmittedRun("12").wait(timeout=0.1)

    def test_state_is_of_the_answer_that_ended_the_wait(self, here):
        job = SLURM_JOB.format(state="COMPLETED", reason="None", restarts=0, here=here)
        make_run(here, "ddp-12", state="done", job="slurm 12")
        self.answers(here, "scontrol", f"echo '{job}'", f"echo '{AWAY}' >&2; exit 1")
        assert SubmittedRun("12").wait(timeout=30) == "done"

    def test_next_job_that_is_submitted_during_the_query_is_waited_for(self, here):
        run = make_run(here, "ddp-12", state="out-of-time", job="pbs 12")
        stamp = time.time() - 60
        os.utime(run / "logs" / "1" / "job", (stamp, stamp))
        waiting = pbs_job(here, "Q", job="13.server")
        last = f"echo '1 13' >{run}/requeues; echo '{pbs_job(here, 'F')}'"
        program(here, "qstat", f"case \"$*\" in *12) {last} ;; *) echo '{waiting}' ;; esac")
        with pytest.raises(TimeoutError):
            SubmittedRun("12").wait(timeout=1)

    def test_node_that_fails_leaves_a_crashed_run(self, here):
        slurm_answers(here, state="NODE_FAIL")
        make_run(here, "ddp-12", job="slurm 12")
        assert SubmittedRun("12").state == "crashed"

    @pytest.mark.parametrize(("launched", "state"), [(False, "failed"), (True, "crashed")])
    def test_job_without_a_recorded_end(self, here, launched, state):
        slurm_answers(here, state="FAILED")
        log = make_attempt(here / "runs" / "ddp-12", 1, job="slurm 12")
        if not launched:
            (log / "stderr.log").unlink()
        assert SubmittedRun("12").state == state

    @pytest.fixture
    def chain(self, here):
        """Job 12 has ended; job 13, which continues its run, waits when it is first asked for, and then ends."""
        run = make_run(here, "ddp-12", state="out-of-time", job="pbs 12")
        stamp = time.time() - 60
        os.utime(run / "logs" / "1" / "job", (stamp, stamp))
        (run / "requeues").write_text("1 13\n")
        (here / "ddp.o12.1").write_text("one\n")
        verdict = run / contract.verdict_file(2)
        (here / "queued").write_text(pbs_job(here, "Q", job="13.server", index=".2"))
        (here / "over").write_text(pbs_job(here, "F", job="13.server", index=".2"))
        program(
            here,
            "qstat",
            f"""case "$*" in
            *12) echo '{pbs_job(here, "F", index=".1")}' ;;
            *13) if [ ! -e {here}/asked ]; then echo >{here}/asked; echo "$(<{here}/queued)"; exit; fi
                 /bin/mkdir -p {run}/logs/2 && echo pbs 13 >{run}/logs/2/job
                 echo two >{here}/ddp.o12.2
                 echo done 60 >{verdict}
                 echo "$(<{here}/over)" ;;
            *) {NOT_KNOWN} ;;
            esac""",
        )
        return run

    def test_next_job_of_a_chain_is_waited_for(self, chain):
        run = SubmittedRun("12")
        assert run.state == "pending"
        assert run.wait(timeout=30) == "done"
        assert run.folder == chain

    def test_log_that_pbs_delivers_at_the_end_repeats_no_line(self, here, capfd):
        """The ranks' standard error is followed; the log also has their standard output, between its lines."""
        run = make_run(here, "ddp-12", job="pbs 12")
        (run / "logs/1/stderr.log").write_text("step 1\nstep 2\nwarning\nwarning\n")
        lines = ["head", "step 1", "epoch 0", "step 2", "warning", "warning", "warning", "used 1 node"]
        (here / "delivered").write_text("".join(f"{line}\n" for line in lines))
        running = f"echo '{pbs_job(here, 'R')}'"
        self.answers(here, "qstat", running, running, f"/bin/cp delivered ddp.o12; echo '{pbs_job(here, 'F')}'")
        assert main(["logs", "--follow", "12"]) == 0
        out, err = capfd.readouterr()
        assert out.split("\n")[:4] == ["step 1", "step 2", "warning", "warning"]
        assert out.split("\n")[4:] == ["head", "epoch 0", "warning", "used 1 node", ""]
        assert "ddp.o12" in err

    def test_follower_goes_on_while_the_scheduler_is_silent(self, here, capfd):
        make_run(here, "ddp-12", job="slurm 12")
        job = SLURM_JOB.format(state="RUNNING", reason="None", restarts=0, here=here)
        ended = f"echo end >>'{here}/my log.out'; echo '{job.replace('RUNNING', 'COMPLETED')}'"
        (here / "my log.out").write_text("begin\n")
        self.answers(here, "scontrol", f"echo '{job}'", f"echo '{AWAY}' >&2; exit 1", f"echo '{job}'", ended)
        assert main(["logs", "--follow", "12"]) == 0
        assert capfd.readouterr().out == "begin\nend\n"

    def test_log_of_a_job_that_pbs_has_forgotten_is_printed(self, here, capfd):
        make_run(here, "ddp-12", job="pbs 12")
        running = f"echo '{pbs_job(here, 'R')}'"
        self.answers(here, "qstat", running, running, f"echo all >{here}/ddp.o12; {NOT_KNOWN}", NOT_KNOWN)
        assert main(["logs", "--follow", "12"]) == 0
        assert capfd.readouterr().out == "a warning\nall\n"

    @pytest.mark.parametrize("name", ["12", "runs/ddp-12"])
    @pytest.mark.usefixtures("chain")
    def test_followed_log_goes_on_with_the_next_job_of_a_chain(self, capfd, name):
        assert main(["logs", "--follow", name]) == 0
        assert capfd.readouterr().out == {"12": "one\ntwo\n", "runs/ddp-12": "two\n"}[name]


class TestPbsArray:
    @pytest.fixture(autouse=True)
    def pbs(self, here):
        one = pbs_job(here, "R", job="12[1].server", index=".^array_index^")
        two = pbs_job(here, "Q", job="12[2].server", index=".^array_index^")
        cases = f"'-f 12[1]' | '-f 12[1].server') echo '{one}' ;; '-t -f 12[]') echo '{PBS_ARRAY}{one}{two}' ;;"
        program(here, "qstat", f'case "$*" in {cases} *) {NOT_KNOWN} ;; esac')
        program(here, "qdel", f'echo "$@" >{here}/cancelled')

    @pytest.mark.parametrize("name", ["12[1]", "12[1].server", "12_1", "runs/ddp-12_1"])
    def test_status_log_and_cancel_of_one_array_task(self, here, capsys, name):
        make_run(here, "ddp-12_1", job="pbs 12_1")
        (here / "ddp.o12.1").write_text("one\n")
        lines = said(capsys, "status", name).out.splitlines()
        assert lines[0].startswith("job 12[1].server: R ")
        assert_names(lines[0], "node1, node2", "00:00:09 of 01:00:00")
        assert lines[1].startswith("run runs/ddp-12_1: attempt 1 running")
        assert lines[2] == f"log {here}/ddp.o12.1"
        said(capsys, "cancel", name)
        assert (here / "cancelled").read_text() == "12[1].server\n"

    @pytest.mark.parametrize("name", ["12", "12[]"])
    def test_status_and_cancel_of_whole_array(self, here, capsys, name):
        lines = said(capsys, "status", name).out.splitlines()
        assert lines[0].startswith("job 12[].server: B ")
        assert lines[0].split()[-5:] == ["1-2;", "Queued:1", "Running:1", "Exiting:0", "Expired:0"]
        assert [line.split(":")[0] for line in lines[1:3]] == ["job 12[1].server", "job 12[2].server"]
        said(capsys, "cancel", name)
        assert (here / "cancelled").read_text() == "12[].server\n"


class TestTwoSchedulers:
    """A cluster with both sets of commands on PATH, as if Slurm offered PBS's as wrappers."""

    @pytest.fixture(autouse=True)
    def both(self, here):
        job = SLURM_JOB.format(state="RUNNING", reason="None", restarts=0, here=here)
        program(here, "scontrol", f"[ $4 = 12 ] || {{ {FORGOTTEN}; }}\necho '{job}'")
        program(here, "scancel", f'echo scancel "$@" >>{here}/cancelled')
        program(here, "qdel", f'echo qdel "$@" >>{here}/cancelled')

    def pbs_knows(self, here, number):
        job = pbs_job(here, "R", job=f"{number}.server")
        known = f"'-f {number}' | '-f {number}.server') echo '{job}' ;;"
        program(here, "qstat", f'case "$*" in {known} *) {NOT_KNOWN} ;; esac')

    def test_scheduler_is_taken_from_run_folder(self, here, capsys):
        self.pbs_knows(here, 12)
        run = make_run(here, "ddp-12", job="pbs 12")
        for name in (str(run), "12"):
            assert said(capsys, "status", name).out.startswith("job 12.server: R ")
            said(capsys, "cancel", name)
        assert (here / "cancelled").read_text() == "qdel 12.server\n" * 2

    def test_each_scheduler_is_queried_without_run_folder(self, here, capsys):
        self.pbs_knows(here, 13)
        assert said(capsys, "status", "12").out.startswith("job 12: RUNNING")
        assert said(capsys, "status", "13").out.startswith("job 13.server: R")
        refused(capsys, "no-such-job", "pbs", "slurm", "job 14", "runs/", words=["status", "14"])

    def test_unreachable_scheduler_does_not_hide_jobs_of_other(self, here, capsys):
        program(here, "scontrol", f"echo '{AWAY}' >&2; exit 1")
        self.pbs_knows(here, 13)
        assert said(capsys, "status", "13").out.startswith("job 13.server: R")
        refused(capsys, "scheduler-silent", "Slurm", "job 14", AWAY, words=["status", "14"])

    def test_cancel_of_ambiguous_job_number_is_refused(self, here, capsys):
        self.pbs_knows(here, 12)
        refused(capsys, "several-runs", "pbs", "slurm", "job 12", words=["cancel", "12"])
        assert not (here / "cancelled").exists()
        said(capsys, "cancel", "12.server")
        make_run(here, "ddp-12", job="slurm 12")
        said(capsys, "cancel", "12.server")
        assert (here / "cancelled").read_text() == "qdel 12.server\n" * 2


def in_queue(here, *jobs):
    """Let squeue list jobs, given as number, state, time of submission, name and command."""
    lines = [
        f"{number}|{state}|Resources|node1|0:09|1:00:00|2020-11-24T{clock}:00|{here}|{name}|{command}"
        for number, state, clock, name, command in jobs
    ]
    (here / "queue").write_text("".join(f"{line}\n" for line in lines))
    program(here, "squeue", f'echo "$@" >>{here}/asked; exec /bin/cat {here}/queue')


def began(run, clock, *, number=1):
    """Set the times of a run's files as if its attempt had begun, and last written, at that time."""
    for path in [run / "logs" / str(number) / "job", *run.glob("*.json*"), run / "logs" / str(number), run]:
        at(path, f"2020-11-24 {clock}:00")


def listed(capsys, *words):
    """Return name, state, step, job and folder of each line of `jobgen list`."""
    lines = said(capsys, "list", *words).out.splitlines()
    rows = [line.split() for line in lines]
    assert rows[0] == ["name", "state", "step", "job", "age", "folder"]
    assert (
        len({line.find(row[-1], line.find(row[3]) + len(row[3])) for line, row in zip(lines, rows, strict=True)}) == 1
    )  # aligned
    return [(row[0], row[1], row[2], row[3], row[-1]) for row in rows[1:]]


OURS = "/scratch/jobgen-x1y2z3_4/ddp.job --epochs 3"


class TestList:
    def test_local_runs_are_listed_newest_first(self, here, capsys):
        began(make_run(here, "old-20201120-210842-7", state="done", job="local 20201120-210842-7"), "08:00")
        make_run(here, "ddp-20201121-210842-7", job="local 20201121-210842-7")
        assert listed(capsys) == [
            ("ddp", "running", "50", "-", "runs/ddp-20201121-210842-7"),
            ("old", "done", "50", "-", "runs/old-20201120-210842-7"),
        ]

    def test_json_extends_facts_of_status(self, here, capsys):
        began(make_run(here, "ddp-12", state="stopped", reason="user", job="slurm 12"), "08:00")
        (found,) = json.loads(said(capsys, "list", "--json").out)
        (facts,) = json.loads(said(capsys, "status", "--json").out)
        stamp = time.mktime(time.strptime("2020-11-24 08:00", "%Y-%m-%d %H:%M"))
        changed = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(stamp))
        assert found == {**facts, "name": "ddp", "job": "12", "scheduler": "slurm", "changed": changed}

    @pytest.mark.usefixtures("here")
    def test_no_runs_is_not_an_error(self, capsys):
        out, err = said(capsys, "list")
        assert (out, err.count("\n")) == ("", 1)
        assert_names(err, "runs")
        assert json.loads(said(capsys, "list", "--json").out) == []

    def test_runs_are_sought_in_output_of_default_site(self, here, capsys, monkeypatch):
        monkeypatch.setenv("SCRATCH", str(here / "scratch"))
        began(make_run(here, "ddp-12", state="done"), "08:00")
        began(make_run(here / "scratch", "ddp-13", state="done"), "08:00")
        site = here / "mine.toml"
        site.write_text('name = "mine"\nscheduler = "slurm"\noutput = "$SCRATCH/runs"\n')
        monkeypatch.setenv("SLIPWAY_SITE", str(site))
        assert [folder for *_, folder in listed(capsys)] == [str(here / "scratch" / "runs" / "ddp-13")]
        monkeypatch.setenv("SLIPWAY_OUTPUT", "runs")
        assert [folder for *_, folder in listed(capsys)] == ["runs/ddp-12"]
        monkeypatch.delenv("SLIPWAY_OUTPUT")
        site.write_text("no TOML")  # jobs can be listed and cancelled all the same
        assert [folder for *_, folder in listed(capsys)] == ["runs/ddp-12"]

    def test_twenty_newest_runs_and_queued_ones_are_listed(self, here, capsys):
        program(here, "scontrol", FORGOTTEN)
        for number in range(25):
            began(make_run(here, f"ddp-{number}", state="done", job=f"slurm {number}"), f"08:{number:02}")
        in_queue(here, (2, "PENDING", "07:00", "ddp", OURS))
        names = [folder for *_, folder in listed(capsys)]
        assert names == [f"runs/ddp-{number}" for number in [*range(24, 4, -1), 2]]
        assert_names(said(capsys, "list").err, " 4 ", "--all")
        assert len(json.loads(said(capsys, "list", "--json").out)) == 21
        assert len(listed(capsys, "--all")) == 25
        assert said(capsys, "list", "--all").err == ""

    def test_scheduler_refines_states_with_one_query(self, here, capsys):
        program(here, "scontrol", "echo unexpected >&2; exit 1")
        began(make_run(here, "ddp-12", state="out-of-time", reason="time-limit", job="slurm 12"), "08:00")
        began(make_run(here, "ddp-40_2", job="slurm 40_2"), "08:10")
        make_attempt(here / "runs" / "ddp-5", 1, job="slurm 5", code=1)
        began(here / "runs" / "ddp-5", "07:00")
        in_queue(
            here,
            (12, "PENDING", "08:01", "ddp", OURS),
            ("40_2", "RUNNING", "08:02", "ddp", OURS),
            ("40_[10-20%2]", "PENDING", "08:02", "ddp", OURS),
            (50, "PENDING", "09:00", "mine", "/home/a/notebook.sh"),
            (51, "COMPLETED", "09:00", "mine", "/home/a/notebook.sh"),
            (52, "PENDING", "06:00", "ddp", f"{here}/runs/ddp-5/job.sh"),
        )
        rows = listed(capsys)
        assert sorted(rows) == sorted([
            ("mine", "pending", "-", "50", "-"),
            ("ddp", "running", "50", "40_2", "runs/ddp-40_2"),
            ("ddp", "pending", "-", "40", "-"),
            ("ddp", "pending", "50", "12", "runs/ddp-12"),
            ("ddp", "pending", "-", "52", "runs/ddp-5"),
        ])  # fmt: skip
        assert (here / "asked").read_text().count("\n") == 1

    def test_filters_of_the_user_do_not_apply(self, here, capsys, monkeypatch):
        program(here, "scontrol", FORGOTTEN)
        program(here, "squeue", f"/usr/bin/env >{here}/environment")
        monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
        monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
        said(capsys, "list")
        environment = (here / "environment").read_text().splitlines()
        assert not [line for line in environment if line.startswith("SQUEUE_")]
        assert {"SLURM_TIME_FORMAT=standard", "SLURM_BITSTR_LEN=0"} <= {*environment}

    @pytest.mark.parametrize(
        ("name", "script", "values"),
        [
            ("squeue", f"echo '{AWAY}' >&2; exit 1", ["Slurm", AWAY]),
            ("qselect", f"echo '{PBS_AWAY}' >&2; exit 111", ["PBS", PBS_AWAY]),
        ],
    )
    def test_unreachable_scheduler_is_a_warning(self, here, capsys, name, script, values):
        program(here, {"squeue": "scontrol", "qselect": "qstat"}[name], "exit 1")
        program(here, name, script)
        make_run(here, "ddp-12", job="slurm 12")
        out, err = said(capsys, "list", "--json")
        assert_warning(err, "scheduler-silent", *values)
        assert [run["state"] for run in json.loads(out)] == ["running"]
        refused(capsys, "scheduler-silent", *values, words=["cancel"])

    def test_jobs_of_pbs_are_listed(self, here, capsys):
        chained = make_run(here, "ddp-12", state="out-of-time", job="pbs 12")
        (chained / "requeues").write_text("1 12\n1 13\n")
        began(chained, "08:00")
        waiting = [pbs_job(here, "H", job=f"{job}.server") for job in ("13", "20[1]", "20[2]")]
        array = PBS_ARRAY.replace("12[]", "20[]")
        program(here, "qselect", 'echo "13.server"; echo "20[].server"')
        program(
            here,
            "qstat",
            f"[ \"$*\" = '-t -f 13.server 20[].server' ] && echo '{waiting[0]}{array}{''.join(waiting[1:])}'",
        )
        assert sorted(listed(capsys)) == [
            ("ddp", "pending", "-", "20", "-"),
            ("ddp", "pending", "50", "13", "runs/ddp-12"),
        ]

    def test_other_schedulers_imitation_of_qstat_is_not_asked(self, here, capsys):
        program(here, "qstat", "exit 1")
        make_run(here, "ddp-12", job="slurm 12")
        assert said(capsys, "list").err == ""

    def test_sweep_is_one_line_with_state_of_its_runs(self, here, capsys):
        program(here, "scontrol", FORGOTTEN)
        runs = [("a", "000", "40_0"), ("b", "001", "40_1"), ("c", "002", None)]
        trials = [{"name": name, "run": run, "values": {}, "seed": 0, "rung": 0, "job": job} for name, run, job in runs]
        head = {"schema": 1, "kind": "sweep", "scheduler": "slurm", "metric": "loss", "goal": "min", "seeds": 1}
        make_run(here, "digits/000", state="done", job="slurm 40_0")
        path = here / "runs" / "digits" / "sweep.json"
        path.write_text(json.dumps({**head, "rungs": [], "axes": {}, "trials": trials}))
        in_queue(here, ("40_1", "PENDING", "08:00", "digits", OURS))
        assert listed(capsys) == [("digits", "pending", "-", "40", "runs/digits")]
        in_queue(here)
        assert listed(capsys) == [("digits", "missing", "-", "40", "runs/digits")]
        path.write_text("{")
        assert_warning(said(capsys, "list").err, "bad-record", path.relative_to(here))

    def test_narrow_terminal_cuts_names_and_never_folders(self):
        rows = [["name", "state", "folder"], ["a-very-long-name", "done", "runs/a-very-long-name-4711"]]
        assert _lines(rows, 200) == _lines(rows, None)
        assert _lines(rows, 45)[1] == "a-very-...  done   runs/a-very-long-name-4711"
        assert _lines(rows, 10)[1] == "a-ver...  done   runs/a-very-long-name-4711"

    def test_listing_of_many_runs_is_fast(self, here, capsys):
        program(here, "scontrol", FORGOTTEN)
        for number in range(300):
            make_run(here, f"ddp-{number}", state="done", job=f"slurm {number}")
        in_queue(here, (299, "RUNNING", "08:00", "ddp", OURS), (300, "PENDING", "08:00", "ddp", OURS))
        start = time.monotonic()
        said(capsys, "list")
        assert time.monotonic() - start < 5


class TestCancelOfNewest:
    """Without an argument, only what the user submitted last is cancelled."""

    @pytest.fixture(autouse=True)
    def slurm(self, here):
        job = SLURM_JOB.replace("JobId=12", "JobId=$4").format(state="RUNNING", reason="None", restarts=0, here=here)
        program(here, "scontrol", f'echo "{job}"')
        program(here, "scancel", f'echo "$@" >>{here}/cancelled')
        in_queue(here)

    def cancelled(self, here, capsys, *values):
        """Return what `jobgen cancel` gives to scancel; its messages must contain the values."""
        assert_names(said(capsys, "cancel").err, *values)
        return (here / "cancelled").read_text()

    def test_newest_of_two_running_jobs_is_cancelled_and_named(self, here, capsys):
        """It is not the one that started or changed last."""
        began(make_run(here, "ddp-13", job="slurm 13"), "08:10")
        began(make_run(here, "ddp-12", job="slurm 12"), "08:20")
        in_queue(here, (12, "RUNNING", "08:01", "ddp", OURS), (13, "RUNNING", "08:02", "ddp", OURS))
        assert self.cancelled(here, capsys, "runs/ddp-13", "job 13") == "13\n"

    def test_requeued_older_job_is_not_the_newest(self, here, capsys):
        began(make_run(here, "ddp-12", state="out-of-time", job="slurm 12"), "08:00")
        began(make_run(here, "ddp-13", job="slurm 13"), "08:10")
        in_queue(here, (12, "PENDING", "09:00", "ddp", OURS), (13, "RUNNING", "08:02", "ddp", OURS))
        assert self.cancelled(here, capsys, "job 13") == "13\n"

    def test_ended_newest_run_is_refused_though_older_one_runs(self, here, capsys):
        began(make_run(here, "ddp-12", job="slurm 12"), "08:00")
        began(make_run(here, "ddp-13", job="slurm 13", state="done"), "08:10")
        in_queue(here, (12, "RUNNING", "08:01", "ddp", OURS))
        refused(capsys, "already-ended", "runs/ddp-13", words=["cancel"])
        assert not (here / "cancelled").exists()

    def test_ended_local_run_is_refused_though_older_job_runs(self, here, capsys):
        began(make_run(here, "ddp-12", job="slurm 12"), "08:10")
        began(make_run(here, "ddp-20201124-080500-7", state="done"), "08:05")
        in_queue(here, (12, "RUNNING", "08:01", "ddp", OURS))
        refused(capsys, "already-ended", "runs/ddp-20201124-080500-7", words=["cancel"])
        in_queue(here, (12, "RUNNING", "08:07", "ddp", OURS))
        assert self.cancelled(here, capsys, "job 12") == "12\n"

    def test_job_submitted_before_earlier_one_ended_is_cancelled(self, here, capsys):
        began(make_run(here, "ddp-12", job="slurm 12", state="failed"), "09:00")
        in_queue(here, (13, "PENDING", "08:02", "ddp", OURS))
        assert self.cancelled(here, capsys, "job 13") == "13\n"

    def test_old_run_with_higher_number_does_not_count(self, here, capsys):
        """Of a cluster whose numbers began anew."""
        began(make_run(here, "ddp-9000", job="slurm 9000", state="done"), "07:00")
        in_queue(here, (13, "PENDING", "08:02", "ddp", OURS))
        assert self.cancelled(here, capsys, "job 13") == "13\n"

    def test_whole_newest_array_is_cancelled(self, here, capsys):
        began(make_run(here, "ddp-40_0", job="slurm 40_0", state="done"), "08:10")
        began(make_run(here, "ddp-40_1", job="slurm 40_1"), "08:10")
        in_queue(here, ("40_[2-9]", "PENDING", "08:01", "ddp", OURS), ("40_1", "RUNNING", "08:01", "ddp", OURS))
        assert self.cancelled(here, capsys, "40") == "40\n"

    @pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
    def test_newest_job_of_another_program_is_refused(self, here, capsys, state):
        began(make_run(here, "ddp-12", job="slurm 12"), "08:00")
        mine = here / "my notebook.sh"
        mine.write_text("#!/bin/bash\nexec jupyter\n")
        in_queue(here, (12, "RUNNING", "08:01", "ddp", OURS), (13, state, "08:02", "jupyter", f"{mine} --port 1"))
        refused(capsys, "unclear-newest", "13", "jupyter", "runs/", words=["cancel"])
        assert not (here / "cancelled").exists()
        mine.write_text((ROOT / "jobscripts" / "ddp.job").read_text())
        assert self.cancelled(here, capsys, "job 13") == "13\n"

    def test_requeued_job_without_known_run_is_refused(self, here, capsys):
        job = SLURM_JOB.format(state="PENDING", reason="None", restarts=1, here=here)
        program(here, "scontrol", f"echo '{job}'")
        began(make_run(here, "ddp-20201124-080500-7", state="done"), "08:05")
        in_queue(here, (12, "PENDING", "08:07", "ddp", OURS))
        refused(capsys, "unclear-newest", "12", words=["cancel"])
        assert not (here / "cancelled").exists()

    def test_waiting_job_that_continues_run_belongs_to_it(self, here, capsys):
        run = make_run(here, "ddp-12", job="slurm 12", state="stopped")
        began(run, "07:00")
        in_queue(here, (13, "PENDING", "08:02", "ddp", f"{run}/job.sh --epochs 60"))
        assert self.cancelled(here, capsys, "runs/ddp-12", "job 13") == "13\n"

    def test_job_that_ends_meanwhile_is_refused(self, here, capsys):
        slurm_answers(here, state="COMPLETED")
        in_queue(here, (12, "RUNNING", "08:02", "ddp", OURS))
        assert_error(said(capsys, "cancel", code=78).err, "already-ended", "12")
        assert not (here / "cancelled").exists()

    def test_local_run_is_stopped(self, here, capsys):
        run = make_run(here)
        began(make_run(here, "ddp-12", job="slurm 12", state="done"), "08:00")
        assert_names(said(capsys, "cancel").err, "runs/ddp-7", "STOP")
        assert (run / "STOP").exists()
        assert not (here / "cancelled").exists()

    def test_chained_job_of_older_submission_is_not_the_newest(self, here, capsys):
        (here / "bin" / "scontrol").unlink()
        run = make_run(here, "ddp-12", state="out-of-time", job="pbs 12")
        (run / "requeues").write_text("1 12\n1 20\n")
        began(run, "08:00")
        began(make_run(here, "ddp-15", job="pbs 15"), "08:10")
        jobs = {15: pbs_job(here, "R", job="15.server"), 20: pbs_job(here, "Q", job="20.server")}
        at_once = "".join(jobs.values()).replace("Job_Name", "ctime = Tue Nov 24 08:05:00 2020\n    Job_Name")
        program(here, "qselect", "echo 15.server 20.server")
        program(here, "qdel", f'echo "$@" >>{here}/cancelled')
        program(
            here,
            "qstat",
            f"case \"$*\" in '-f 15') echo '{jobs[15]}' ;; '-t -f '*) echo '{at_once}' ;; *) {NOT_KNOWN} ;; esac",
        )
        assert self.cancelled(here, capsys, "runs/ddp-15", "job 15") == "15.server\n"

    @pytest.mark.parametrize("folders", [[], ["empty"]])
    def test_nothing_to_cancel_is_refused(self, here, capsys, folders):
        for name in folders:
            (here / "runs" / name).mkdir(parents=True)
        refused(capsys, "no-such-run", "runs", words=["cancel"])


class TestCompletion:
    def complete(self, *words):
        script = 'source <("$1" -m jobgen completion); shift; COMP_WORDS=("$@"); _jobgen jobgen "${@: -1}" "${@: -2:1}"'
        script += '; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(
            ["bash", "-c", script, "bash", sys.executable, "jobgen", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            check=True,
            capture_output=True,
            text=True,
        )
        return shlex.split(done.stdout)

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["sta"], {"status"}),
            (["submit", "self"], {"selftest"}),
            (["study", "self"], {"selftest"}),
            (["sweep", "self"], {"selftest"}),
            (["submit", "ddp", "--d"], {"--dry-run"}),
            (["render", "ddp", "--st"], {"--standalone"}),
            (["sweep", "ddp", "--ru"], {"--rungs"}),
            (["sweep", "ddp", "--goal", "m"], {"max", "min"}),
            (["render", "-"], {"--site", "--set", "--standalone", "--output", "--help"}),
            (["status", "-"], {"--json", "--help"}),
        ],
    )
    def test_completion_offers_commands_specs_and_options(self, words, expected):
        assert set(self.complete(*words)) == expected

    def test_completion_offers_site_names(self):
        assert {"example", "laptop"} <= set(self.complete("render", "ddp", "--site", ""))

    def test_completion_offers_all_commands_of_parser(self):
        commands = parser()._subparsers._group_actions[0].choices
        assert set(self.complete("")) == {*commands, "--help"}

    def test_completion_script_is_valid_bash_without_placeholders(self, capsys):
        text = said(capsys, "completion").out
        assert "@{" not in text
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
