"""status, logs and cancel: run folders of this machine, and jobs of schedulers that answer as theirs do."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobgen.cli import _parser, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return an empty folder to work in, without any scheduler on the PATH but what ``program`` puts there."""
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    monkeypatch.delenv("OUTPUT", raising=False)
    return tmp_path


def program(folder, name, script):
    path = folder / "bin" / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def make_run(folder, name="ddp-7", *, state="running", script="#!/usr/bin/env bash\n", alive=True, **status):
    run = folder / "runs" / name
    (run / "logs").mkdir(parents=True)
    (run / "job.sh").write_text(script)
    (run / "status.json").write_text(json.dumps({"attempt": 1, "state": state, "reason": "", "step": 40, **status}))
    record = {"kind": "train", "step": 50, "epoch": 1.25, "loss": 0.5, "samples_per_second": 99.0}
    (run / "metrics.jsonl").write_text(json.dumps(record) + '\n{"half a l')
    (run / "logs" / "stderr.1.log").write_text("a warning\n")
    if state == "running":
        (run / "lock").write_text(json.dumps({"job_id": "7", "pid": 1}))
        stamp = time.time() - (0 if alive else 300)
        os.utime(run / "lock", (stamp, stamp))
    return run


def said(capsys, *words, code=0):
    assert main(list(words)) == code
    return capsys.readouterr()


class TestThisMachine:
    def test_the_newest_run_is_meant_where_none_is_named(self, here, capsys):
        make_run(here, "old-1", state="done")
        os.utime(here / "runs" / "old-1", (1, 1))
        run = make_run(here)
        expected = "attempt 1 running, step 50, epoch 1.2, loss 0.5, 99 samples/s"
        assert (
            said(capsys, "status").out == f"run runs/ddp-7: {expected}\nlog {run.relative_to(here)}/logs/stderr.1.log\n"
        )

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"alive": False}, "running, but without a sign of life for 60 s: it crashed"),
            ({"state": "stopped", "reason": "user"}, "attempt 1 stopped (user), step 50"),
            ({"state": "failed", "reason": "the loss is nan"}, "attempt 1 failed (the loss is nan)"),
        ],
    )
    def test_how_a_run_ended_is_told(self, here, capsys, fields, expected):
        run = make_run(here, **fields)
        assert expected in said(capsys, "status", str(run)).out

    def test_a_run_is_cancelled_by_its_file(self, here, capsys):
        run = make_run(here)
        assert "asked to save and stop" in said(capsys, "cancel", str(run)).err
        assert (run / "STOP").read_text() == "user\n"
        assert "it has been asked to stop" in said(capsys, "status", str(run)).out

    def test_one_that_has_ended_is_not(self, here, capsys):
        run = make_run(here, state="done")
        assert "has ended: there is nothing to cancel" in said(capsys, "cancel", str(run), code=78).err
        assert not (run / "STOP").exists()

    def test_a_log_is_followed_until_the_run_ends(self, here):
        run = make_run(here)
        words = [sys.executable, "-m", "jobgen", "logs", "--follow", str(run)]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env)
        assert process.stdout.readline() == "a warning\n"
        with (run / "logs" / "stderr.1.log").open("a") as file:
            file.write("another\n")
        assert process.stdout.readline() == "another\n"
        (run / "lock").unlink()
        assert process.wait(20) == 0

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            (["status", "nowhere"], "'nowhere' is neither a run folder nor the number of a job."),
            (["status"], "no run in runs: name a run folder or the number of a job."),
            (["logs", "12"], "no scheduler on this machine knows job 12: ask on a login node, or name a run folder."),
        ],
    )
    @pytest.mark.usefixtures("here")
    def test_what_is_not_there_is_answered_in_a_line(self, capsys, words, expected):
        assert said(capsys, *words, code=78).err == f"jobgen: {expected}\n"


SLURM_JOB = (
    "JobId=12 JobName=ddp UserId=a(1) JobState={state} Reason={reason} Restarts=0 RunTime=00:00:09 TimeLimit=01:00:00 "
    "ExitCode=0:0 NodeList=node[1-2] Command=(null) WorkDir={here} StdOut={here}/my log.out Power="
)
FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"


class TestSlurm:
    def answer(self, here, *, state="RUNNING", reason="None"):
        program(here, "scontrol", f"echo '{SLURM_JOB.format(state=state, reason=reason, here=here)}'")

    def test_a_job_its_run_and_its_log(self, here, capsys):
        self.answer(here)
        make_run(here, "ddp-12", script="#!/usr/bin/env bash\n#SBATCH --nodes=2 # two\n")
        (here / "my log.out").write_text("hello\n")
        lines = said(capsys, "status", "12").out.splitlines()
        assert lines[0] == "job 12: RUNNING on node[1-2] for 00:00:09 of 01:00:00"
        assert lines[1].startswith("run runs/ddp-12: attempt 1 running")
        assert lines[2] == f"log {here}/my log.out"
        assert said(capsys, "logs", "runs/ddp-12").out == "hello\n"

    def test_a_job_that_waits_says_why(self, here, capsys):
        self.answer(here, state="PENDING", reason="Resources")
        assert said(capsys, "status", "12").out.startswith("job 12: PENDING because of Resources\n")

    def test_cancelling_is_the_schedulers_business(self, here, capsys):
        self.answer(here)
        program(here, "scancel", f'echo "$@" >{here}/cancelled')
        assert "job 12 is told to end" in said(capsys, "cancel", "12").err
        assert (here / "cancelled").read_text() == "12\n"

    def test_without_accounting_a_forgotten_job_is_known_by_its_run(self, here, capsys):
        program(here, "scontrol", FORGOTTEN)
        program(here, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
        assert "slurm does not know job 12 (any more)" in said(capsys, "status", "12", code=78).err
        make_run(here, "ddp-12", state="done")
        lines = said(capsys, "status", "12").out.splitlines()
        assert lines[0] == "job 12: slurm does not know it (any more)"
        assert lines[1].startswith("run runs/ddp-12: attempt 1 done")
        assert said(capsys, "logs", "12").out == "a warning\n"

    def test_with_accounting_a_forgotten_job_is_known(self, here, capsys):
        program(here, "scontrol", FORGOTTEN)
        program(here, "sacct", f"echo '12|CANCELLED by 1000|0:15|node[1-2]|00:01:00|01:00:00|{here}'")
        (here / "slurm-12.out").write_text("it was\n")
        expected = "job 12: CANCELLED after 00:01:00 of 01:00:00 on node[1-2], exit code 0:15\n"
        assert said(capsys, "status", "12").out == f"{expected}log {here}/slurm-12.out\n"
        assert said(capsys, "logs", "--follow", "12").out == "it was\n"

    def test_a_controller_that_is_away_is_not_taken_for_a_forgotten_job(self, here, capsys):
        program(here, "scontrol", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
        assert "Slurm does not answer for job 12: Unable to contact" in said(capsys, "status", "12", code=78).err


PBS_JOB = """Job Id: 12.server
    Job_Name = ddp
    job_state = {state}
    exec_host = node1/0*8+node2/0*8
    Output_Path = login:{here}/ddp.o12
    Resource_List.walltime = 01:00:00
    resources_used.walltime = 00:00:09
    Exit_status = 75
    Variable_List = PBS_O_HOME=/home/a,PBS_O_WORKDIR={head}
\t{tail},PBS_O_QUEUE=work
"""


class TestPbs:
    def job(self, here, state):
        text = str(here)  # qstat breaks long lines in mid-word
        return PBS_JOB.format(state=state, here=here, head=text[:4], tail=text[4:])

    @pytest.mark.parametrize(
        ("state", "expected"),
        [
            ("R", "R on node1, node2 for 00:00:09 of 01:00:00"),
            ("Q", "Q no reason given"),
            ("C", "C after 00:00:09 of 01:00:00 on node1, node2, exit code 75"),
        ],
    )
    def test_a_job(self, here, capsys, state, expected):
        program(here, "qstat", f"echo '{self.job(here, state)}'")
        make_run(here, "ddp-12")
        lines = said(capsys, "status", "12.server").out.splitlines()
        assert lines[0] == f"job 12.server: {expected}"
        assert lines[1].startswith("run runs/ddp-12: ")

    def test_a_finished_one_is_asked_for_in_the_history(self, here, capsys):
        once = "qstat: 12.server Job has finished, use -x or -H to obtain historical job information"
        history = self.job(here, "F")
        program(here, "qstat", f"[ \"$1\" = -x ] || {{ echo '{once}' >&2; exit 35; }}\necho '{history}'")
        assert "F after 00:00:09" in said(capsys, "status", "12.server").out

    def test_cancel(self, here, capsys):
        program(here, "qstat", f"echo '{self.job(here, 'R')}'")
        program(here, "qdel", f'echo "$@" >{here}/cancelled')
        said(capsys, "cancel", "12.server")
        assert (here / "cancelled").read_text() == "12.server\n"


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
        return done.stdout.split()

    def test_it_knows_commands_descriptions_sites_and_options(self):
        assert self.complete("sta") == ["status"]
        assert "check" in self.complete("submit", "ch")
        assert {"example", "laptop"} <= set(self.complete("render", "ddp", "--site", ""))
        assert self.complete("submit", "ddp", "--d") == ["--dry-run"]

    def test_its_words_are_the_parsers(self):
        """One list here and one there: they are held equal."""
        commands = _parser()._subparsers._group_actions[0].choices
        assert set(self.complete("")) == {*commands, "--help"}
        for name, parser in commands.items():
            options = {option for action in parser._actions for option in action.option_strings}
            assert set(self.complete(name, "-")) == {option for option in options if option.startswith("--")}, name
