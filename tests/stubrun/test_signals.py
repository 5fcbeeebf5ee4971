"""Signals: the warning of the time limit, scancel and preemption, Ctrl-C; and leftovers."""

import re
import signal
import time
from pathlib import Path

import pytest

from messages import assert_error, slugs
from stubs import SCRIPTS, WAIT, changed_library, launches_of

SAVE = """trap 'echo "stopped 9 signal" >"$RUN_DIR/verdict.$TRAINER_ATTEMPT"; exit 0' TERM INT HUP
touch "$STUB_LOG.up"
while :; do sleep 0.05; done"""
"""A rank that saves at SIGTERM."""
STRAY = 'kill -TERM "$STUB_SCRIPT_PID"; sleep 0.2; '
KILL = 'kill -"$SIGNAL" "$STUB_SCRIPT_PID"; sleep 0.1'
STOPS = """touch "$STUB_LOG.up"
until [ -e "$RUN_DIR/STOP" ]; do sleep 0.05; done
read -r word _ <"$RUN_DIR/STOP"
[ "$word" = user ] && state=stopped || state=out-of-time
mkdir -p "$RUN_DIR/checkpoints"
ln -sfn step_9 "$RUN_DIR/checkpoints/latest"
echo "$state 9 $word" >"$RUN_DIR/verdict.$TRAINER_ATTEMPT"
exit 0"""
"""A rank that checks for STOP."""


def lib_that_waits_for_no_verdict(project):
    return changed_library(project, "slurm.bash", "verdict_seconds=20", "verdict_seconds=0")


class TestTimeLimit:
    def test_warning_signal_stops_ranks_and_requeues_job(self, project):
        job = project.start("ddp.job", STUB_ON_TRAIN=STOPS)
        job.until(project.up)
        job.process.send_signal(signal.SIGUSR1)
        ended = job.end()
        assert (ended.code, ended.requeued) == (75, True)
        assert (ended.run_dir / "STOP").read_text() == "time-limit 4711/1\n"
        assert job.left() == {}

    @pytest.mark.parametrize("step", ["STUB_ON_PREFLIGHT", "STUB_ON_GETENT"])
    def test_warning_signal_before_training_ends_job(self, project, step):
        job = project.start("ddp.job", **{step: WAIT})
        job.until(project.up)
        job.process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)
        project.go()
        ended = job.end()
        ended.assert_refused("time-too-short")
        assert (launches_of(ended), ended.requeued) == ([], False)
        assert project.on_disk() == []

    # regression: 1, and nothing requeued, as `echo` failed
    def test_full_job_log_disk_keeps_exit_code_and_requeue(self, project):
        full = project.spool / "full"
        full.write_text(f'#!/bin/sh\nexec bash "{SCRIPTS}/ddp.job" 2>/dev/full\n')
        full.chmod(0o755)
        kill = f'kill -USR1 "$STUB_SCRIPT_PID"; {STOPS}'
        ended = project.run(full, STUB_ON_TRAIN=kill)
        assert (ended.code, ended.requeued) == (75, True)
        for wrong in ({"SLIPWAY_STAGE": "x"}, {"SLURM_JOB_ID": None}, {"SLIPWAY_LIB": str(project.folder)}):
            assert project.run(full, **wrong).code == 78


class TestCancel:
    @pytest.mark.parametrize("node", ["node1", "node2"])
    def test_script_waits_for_verdict_if_launcher_ends_first(self, project, node):
        late = """kill -TERM "$STUB_SCRIPT_PID"
        (sleep 0.7; echo "stopped 9 signal" >"$RUN_DIR/verdict.$TRAINER_ATTEMPT") >/dev/null 2>&1 &
        exit 143"""
        ended = project.run("ddp.job", STUB_ON_TRAIN=late, SLURMD_NODENAME=node)
        assert (ended.code, ended.continuation_words[0]) == (75, "sbatch")
        assert re.search(r" 9 .*\(signal\)", ended.notes[-1])

    @pytest.mark.parametrize(
        (
            "script",
            "sent",
            "to_all",
        ),  # as Ctrl-C and closing a terminal do for all foreground processes
        [
            ("ddp.job", signal.SIGTERM, False),
            pytest.param("ddp.pbs", signal.SIGTERM, False, marks=pytest.mark.slow),
            ("ddp.sh", signal.SIGTERM, False),
            ("ddp.sh", signal.SIGINT, True),
            ("ddp.sh", signal.SIGHUP, True),
        ],
    )
    def test_signal_during_preflight_ends_job_without_leftovers(self, project, script, sent, to_all):
        job = project.start(script, STUB_ON_PREFLIGHT='touch "$STUB_LOG.up"; exec sleep 600')
        job.until(project.up)
        began = time.monotonic()
        job.send(sent, to_all=to_all)
        ended = job.end()
        assert time.monotonic() - began < 300
        assert (ended.code, launches_of(ended), ended.requeued) == (75, [], False)
        assert_error(ended.err, "stopped-early")
        assert (job.left(), project.on_disk()) == ({}, [])

    # regression: after scancel the folders stayed on all nodes except the first
    @pytest.mark.parametrize("moment", ["STUB_ON_TRAIN", "STUB_ON_PREFLIGHT"])
    def test_scratch_is_removed_on_all_nodes_after_scancel(self, project, moment):
        other = project.folder / "disk of node2"
        other.mkdir()
        on_both = """[ ! -e "$STUB_LOG.cancelled" ] || exit 1
        while [[ $1 == --* ]]; do shift; done
        there=("${@/#"$SLIPWAY_LOCAL_DISK"/"$DISK_OF_NODE2"}")
        case $* in
            */make_folder.sh*) "${there[@]}" ;;
            */watch_scratch.sh*) exec "${there[@]}" ;;
        esac"""
        slow = SAVE.replace("trap '", "trap 'sleep 0.3; ") if moment == "STUB_ON_TRAIN" else f"{WAIT} &\nwait"
        env = {"STUB_ON_SRUN": on_both, "DISK_OF_NODE2": str(other), moment: slow}
        job = project.start("ddp.job", SLURMD_NODENAME="node1", **env)
        job.until(project.up)
        assert [len(list(disk.iterdir())) for disk in (other, project.folder / "disk")] == [1, 1]
        Path(f"{project.log}.cancelled").touch()
        job.send(signal.SIGTERM, to_all=True)  # as scancel does
        ended = job.end()
        assert (ended.code, ended.requeued) == (75, False)
        assert job.left() == {}
        assert [list(disk.iterdir()) for disk in (other, project.folder / "disk")] == [[], []]
        (watch,) = [words for words in ended.of("srun") if "--job-name=slipway-scratch" in words]
        assert {"--overlap", "--nodelist=node2", "--nodes=1", "--mem=0", "--gres=none"} <= {*watch}

    # regression: FAILED with 75, when a job that had lost a node started again
    @pytest.mark.parametrize("moment", ["STUB_ON_PREFLIGHT", "STUB_ON_TRAIN"])
    @pytest.mark.parametrize(
        ("change", "requeued"),
        [
            ({}, True),
            ({"STUB_STATE": "COMPLETING"}, False),
            ({"SLURM_RESTART_COUNT": None}, False),
            ({"SLIPWAY_MAX_REQUEUES": "0"}, False),
        ],
    )
    def test_stray_sigterm_after_node_loss_requeues_job(self, project, moment, change, requeued):
        first = project.run("ddp.job", SLIPWAY_LIB=str(lib_that_waits_for_no_verdict(project)), STUB_ON_TRAIN="exit 0")
        env = {"SLURM_RESTART_COUNT": "1", moment: f"{STRAY}exit 143", **change}
        ended = project.run("ddp.job", SLIPWAY_RUN_DIR=str(first.run_dir), **env)
        assert (ended.code, ended.requeued) == (75, requeued), ended
        assert not requeued or slugs(ended.err) == ["requeued"]

    # regression: 143 without a message, as scontrol is waited for, here and in job.sh, before there is a trap
    @pytest.mark.parametrize("which", ["first", "second"])
    def test_stray_sigterm_during_job_query_requeues_job(self, project, which):
        first = project.run("ddp.job", STUB_ON_TRAIN="exit 0")
        kill = """case $* in *"show job"*)
            echo >>"$STUB_LOG.asked"
            if [ "$(wc -l <"$STUB_LOG.asked")" = WHICH ]; then
                kill -TERM "$STUB_SCRIPT_PID"
                exit 143 # as all processes of the job get it
            fi
        esac""".replace("WHICH", str(1 + (which == "second")))
        task = {"STUB_ON_SCONTROL": kill, "STUB_ARRAY": "4700_3", "SLIPWAY_RUN_DIR": str(first.run_dir)}
        for restarts, requeued in (("1", True), (None, False)):
            Path(f"{project.log}.asked").unlink(missing_ok=True)
            ended = project.run("ddp.job", **task, SLURM_RESTART_COUNT=restarts)
            assert (ended.code, ended.requeued) == (75, requeued), ended
            assert slugs(ended.err) == ["requeued" if requeued else "stopped-early"]
            assert not requeued or ["scontrol", "requeue", "4700_3"] in ended.calls

    # regression: two more queries of a minute each, or another minute if a task of an array was looked up
    def test_sigterm_during_job_query_ends_job_if_slurm_is_silent(self, project):
        silent = """case $* in *"show job"*)
            [ -e "$STUB_LOG.asked" ] || kill -TERM "$STUB_SCRIPT_PID"
            touch "$STUB_LOG.asked"
            exit 143
        esac"""
        first = project.run("ddp.job", STUB_ON_SCONTROL=silent)
        assert (first.code, len(first.of("scontrol"))) == (75, 2)
        assert_error(first.err, "stopped-early")
        task = {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3", "SLURM_RESTART_COUNT": "1"}
        Path(f"{project.log}.asked").unlink()
        ended = project.run("ddp.job", STUB_ON_SCONTROL=silent, **task)
        assert (ended.code, ended.requeued) == (75, False)
        assert sum("job" in words for words in ended.of("scontrol")) == 3  # the last: whether the signal is stray

    # regression: requeued, too
    @pytest.mark.parametrize("when", ["joined", "stopped", "late"])
    def test_sigterm_after_requeued_job_started_ends_job(self, project, when):
        lib = lib_that_waits_for_no_verdict(project)
        if when == "late":
            text = (lib / "slurm.bash").read_text()
            (lib / "slurm.bash").write_text(text.replace("STRAY_SECONDS=60", "STRAY_SECONDS=0"))
        does = {
            "joined": f'echo "{{\\"attempt\\": $TRAINER_ATTEMPT, }}" >"$RUN_DIR/status.json"; {STRAY}',
            "stopped": f'{STRAY}echo "stopped 0 signal" >"$RUN_DIR/verdict.$TRAINER_ATTEMPT"; ',
            "late": STRAY,
        }
        env = {"SLURM_RESTART_COUNT": "1", "SLIPWAY_LIB": str(lib), "STUB_ON_TRAIN": f"{does[when]}exit 143"}
        ended = project.run("ddp.job", **env)
        assert (ended.code, ended.requeued) == (75, False), ended

    # regression: `read` and $(...) delay a trap: here and in check_mpi, in choose_port (the start of a container)
    def test_sigterm_while_waiting_for_server_ends_job(self, project):
        wait = 'case $* in */horovod_server.py*) touch "$STUB_LOG.up"; exec sleep 600 ;; esac'
        job = project.start("horovod-gloo.job", STUB_ON_PYTHON3=wait)
        job.until(project.up)
        began = time.monotonic()
        job.process.send_signal(signal.SIGTERM)
        assert job.end().code == 75
        assert time.monotonic() - began < 300

    # regression: Bash spun in `wait`, deaf to all but SIGKILL
    @pytest.mark.parametrize(
        ("script", "sent", "code"),
        [
            ("ddp.job", "TERM HUP", 75),
            ("cpu.job", "TERM HUP", 75),
            ("ddp.pbs", "USR1 TERM", 78),
            ("ddp.job", "HUP TERM", 75),
        ],
    )
    def test_two_signals_during_server_start_end_job(self, project, script, sent, code):
        both = f'for name in {sent}; do kill -s "$name" "$STUB_SCRIPT_PID"; done; sleep 1'
        ended = project.start(script, STUB_ON_ADDRESS=both).end(60)
        assert (ended.code, launches_of(ended)) == (code, [])
        assert "ended" in (ended.run_dir / "logs" / "1" / "process").read_text()


class TestBeforeRunFolder:
    """Before the run folder is opened, for example while the scheduler is queried about the job."""

    # regression: 138, 129 or 130 without a message
    @pytest.mark.parametrize(
        ("script", "env"),
        [
            ("ddp.job", {"STUB_ON_SCONTROL": KILL}),
            ("ddp.pbs", {"STUB_ON_QSTAT": KILL, "STUB_RUNS": "1"}),
            ("ddp.sh", {"STUB_ON_APPTAINER": KILL, "USE_CONTAINER": None}),
        ],
    )
    @pytest.mark.parametrize(("sent", "code"), [("USR1", 78), ("TERM", 75), ("HUP", 75)])
    def test_signal_before_run_folder_is_opened_ends_job(self, project, script, env, sent, code):
        ended = project.run(script, **env, SIGNAL=sent)
        assert (ended.code, launches_of(ended)) == (code, [])
        assert slugs(ended.err)[-1] == ("time-too-short" if sent == "USR1" else "stopped-early")
        assert not ended.run_dir.exists()

    # regression: 143 without a message
    def test_sigterm_during_repeated_qstat_ends_job(self, project):
        asked = 'touch "$STUB_LOG.up"; exit 1'
        job = project.start("ddp.pbs", STUB_ON_QSTAT=asked)
        job.until(project.up)
        time.sleep(0.2)
        job.send(signal.SIGTERM, to_all=True)
        ended = job.end()
        assert (ended.code, slugs(ended.err)[-1]) == (75, "stopped-early")

    def test_sigint_during_job_query_of_later_attempt_ends_job(self, project):
        first = project.run("ddp.job", STUB_ON_TRAIN="exit 0")
        count = 'echo >>"$STUB_LOG.asked"; [ "$(wc -l <"$STUB_LOG.asked")" != 2 ] || '
        second = f'{count}kill -INT "$STUB_SCRIPT_PID"'
        ended = project.run("ddp.job", STUB_ON_SCONTROL=second, SLIPWAY_RUN_DIR=str(first.run_dir))
        assert (ended.code, slugs(ended.err)) == (75, ["stopped-early"])


class TestLocalMachine:
    # SIGHUP regression: 129 at once, and the ranks trained on
    @pytest.mark.parametrize(
        ("sent", "to_all"),
        [(signal.SIGTERM, False), (signal.SIGINT, True), (signal.SIGHUP, True), (signal.SIGHUP, False)],
    )
    @pytest.mark.parametrize("backend", ["ddp", "horovod"])
    def test_ranks_save_on_signal_without_leftovers(self, project, sent, to_all, backend):
        job = project.start("ddp.sh", STUB_ON_TRAIN=SAVE, BACKEND=backend)
        job.until(project.up)
        time.sleep(0.3)  # the second rank
        job.send(sent, to_all=to_all)
        ended = job.end()
        assert (ended.code, ended.continuation_words) == (75, ["bash", str(ended.run_dir / "job.sh")])
        assert re.search(r" 9 .*\(signal\)", ended.notes[-1])
        assert (job.left(), project.on_disk()) == ({}, [])

    # regression: handle_stop_signal finds no logs/N/pid yet, and does not check again
    def test_signal_at_start_of_launch_is_not_lost(self, project):
        """Between the trap and the moment at which the launch has recorded its process."""
        job = project.start("ddp.sh", STUB_ON_TRAIN=SAVE, USE_CONTAINER="0")
        job.until(job.run_dir / "logs" / "1" / "stderr.log")
        job.process.send_signal(signal.SIGTERM)
        assert job.end(20).code in {75, 143}
        assert job.left() == {}
