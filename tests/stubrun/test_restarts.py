"""Restarts inside the allocation: what is started again, on which nodes, and when a job gives up."""

import json
import os
import re
import socket

import pytest

from messages import assert_error, assert_warning, numbers, slugs
from stubs import SCRIPTS

SPARE = {"STUB_NODES": "node1 node2 node3", "SLIPWAY_SPARES": "1"}
REFUSES = '[[ "$*" != *"--nodelist=node2 "* ]] || exit 1; '
"""For STUB_ON_SRUN: node2 starts no process any more."""
SLOW = '[[ "$*" != *"--nodelist=node2 "*echo* ]] || { echo >>"$STUB_LOG.asked"; sleep 0.7; }; '
"""For STUB_ON_SRUN: a process on node2 takes longer to start than a third of what a test allows."""
DEAD = {"STUB_ON_SRUN": REFUSES, "STUB_DOWN": "node2"}
"""And Slurm knows of it."""
SAVE = 'mkdir -p "$RUN_DIR/checkpoints"; ln -sfn step_0000000$TRAINER_ATTEMPT "$RUN_DIR/checkpoints/latest"; '
"""For STUB_ON_TRAIN: an attempt saves one step more than the one before."""
BEGUN = 'echo "{\\"attempt\\": $TRAINER_ATTEMPT, \\"state\\": \\"running\\"}" >"$RUN_DIR/status.json"; '
"""For STUB_ON_TRAIN: a script whose session has begun."""


def dies(times, *, before=""):
    """Return what lets so many attempts die, for STUB_ON_TRAIN; the next one is done."""
    done = 'echo "done 9 complete" >"$RUN_DIR/verdict.$TRAINER_ATTEMPT"; exit 0'
    return f'{before}[ "$TRAINER_ATTEMPT" -le {times} ] || {{ {done}; }}; exit 1'


@pytest.fixture
def run(project):
    """Return a function that runs a script with restarts."""
    return lambda script="ddp.job", **env: project.run(script, **{"SLIPWAY_MAX_RESTARTS": "3", **env})


def launches(ended):
    """Return the words of each torchrun."""
    return [" ".join(words) for words in ended.of("torchrun")]


def assert_restarted(err, attempt, nodes, *, restart=1):
    """Hold that an attempt was begun from step 0 as a restart of at most 3, on these nodes."""
    found = [line.partition("warning[restarted]: ")[2] for line in err.splitlines() if "[restarted]" in line]
    assert [restart, 3, attempt, 0] in [numbers(text)[:4] for text in found], err
    assert_warning(err, "restarted", nodes)


class TestNotifications:
    """The program of SLIPWAY_NOTIFY, and goodput.jsonl."""

    @pytest.fixture
    def program(self, tmp_path):
        """Return the path of one that keeps its arguments."""
        path = tmp_path / "it's told"
        path.write_text(f'#!/bin/sh\nprintf "%s|%s|%s\\n" "$@" >>{tmp_path}/told\necho said\nexit 3\n')
        path.chmod(0o755)
        return path

    def test_restarts_lost_nodes_and_the_end(self, run, program, tmp_path):
        ended = run(SLIPWAY_NOTIFY=str(program), STUB_ON_TRAIN=dies(1), **DEAD, **SPARE)
        assert ended.code == 0, ended
        told = [line.split("|") for line in sorted((tmp_path / "told").read_text().splitlines())]
        assert [(event, folder) for event, folder, _ in told] == [
            (event, str(ended.run_dir)) for event in ("end", "exclude", "restart")
        ]
        end, exclude, restart = [text for _, _, text in told]
        assert (slugs(exclude), numbers(exclude), "node2" in exclude) == (["node-lost"], [1, 2], True)
        assert_restarted(restart, 2, "node1, node3")
        assert (numbers(end)[0], "2 nodes x 2 GPUs" in end) == (0, True)
        assert "said\n" in (ended.run_dir / "logs" / "2" / "notify.log").read_text()

    def test_one_that_hangs_is_ended(self, run, program):
        program.write_text("#!/bin/sh\nexec sleep 600\n")
        ended = run(SLIPWAY_NOTIFY=str(program), SLIPWAY_NOTIFY_SECONDS="0.3", STUB_ON_TRAIN=dies(0))
        assert ended.code == 0

    @pytest.mark.parametrize("kind", ["missing", "folder", "not executable"])
    def test_what_is_no_program_is_refused(self, run, program, tmp_path, kind):
        program.chmod(0o644)
        path = {"missing": tmp_path / "none", "folder": tmp_path, "not executable": program}[kind]
        ended = run(SLIPWAY_NOTIFY=str(path))
        assert (ended.code, launches(ended)) == (78, [])
        assert_error(ended.err, "no-notify-program", f"SLIPWAY_NOTIFY={path} ")

    def test_each_attempt_says_when_it_began_and_ended(self, run):
        ended = run(STUB_ON_TRAIN=dies(1), **SPARE)
        lines = [json.loads(line) for line in (ended.run_dir / "goodput.jsonl").read_text().splitlines()]
        assert [sorted(line) for line in lines] == [["attempt", "began", "nodes", "spares"], ["attempt", "ended"]] * 2
        assert [line["attempt"] for line in lines] == [1, 1, 2, 2]
        assert (lines[0]["nodes"], lines[0]["spares"]) == (2, 1)
        assert lines[2]["began"] == lines[1]["ended"]

    def test_a_fifo_in_its_place_holds_up_nothing(self, run, tmp_path):
        (tmp_path / "run").mkdir()
        os.mkfifo(tmp_path / "run" / "goodput.jsonl")
        (tmp_path / "run" / "logs" / "1").mkdir(parents=True)
        (tmp_path / "run" / "logs" / "1" / "job").write_text("slurm 1\n")  # a run has been here
        assert run(SLIPWAY_RUN_DIR=str(tmp_path / "run"), STUB_ON_TRAIN=dies(0)).code == 0


def test_a_node_that_dies_before_the_launch_is_replaced(run):
    dead = '[[ "$*" == *--nodelist=* && "$*" != *"--nodelist=node2 "* ]] || exit 1; '
    ended = run(STUB_ON_TRAIN=dies(0), STUB_ON_SRUN=dead, STUB_DOWN="node2", **SPARE)
    assert ended.code == 0, ended
    assert_warning(ended.err, "node-lost", "1", "node2", "DOWN")
    assert "(node1, node3)" in ended.err
    assert ended.env["TRAINER_ATTEMPT"] == "1"


@pytest.mark.parametrize(
    ("signals", "restarts", "code"),
    [("KILL", "3", 0), ("TERM", "3", 0), ("KILL KILL", "3", 78), ("KILL", "0", 78)],  # TERM: as srun ends the others
)
def test_a_step_before_the_launch_that_is_killed_is_run_once_more(run, signals, restarts, code, tmp_path):
    left = tmp_path / "signals"
    left.write_text(signals.replace(" ", "\n") + "\n")
    kill = f'signal=$(head -n 1 "{left}"); sed -i 1d "{left}"; [ -z "$signal" ] || kill -"$signal" $$; '
    ended = run(
        STUB_ON_TRAIN=dies(0),
        STUB_ON_SRUN=f'[[ "$*" != *trainer.preflight* ]] || {{ {kill} }}; ',
        SLIPWAY_MAX_RESTARTS=restarts,
    )
    assert ended.code == code, ended
    assert slugs(ended.err).count("step-repeated") == (restarts != "0")
    assert slugs(ended.err).count("node-not-ready") == (code == 78)


def test_without_a_spare_one_the_job_ends_there(run):
    ended = run(STUB_ON_TRAIN=dies(0), STUB_ON_SRUN='[[ "$*" == *--nodelist=node1* ]] || exit 1; ')
    assert (ended.code, launches(ended)) == (78, [])


class TestWhen:
    def test_each_attempt_has_its_own_number_port_and_rendezvous(self, run):
        ended = run(STUB_ON_TRAIN=dies(1))
        assert ended.code == 0, ended
        first, second = launches(ended)
        assert re.search(r" --master-port=24711 --rdzv-id=4711\.\w{16}\.1\.", first)
        assert re.search(r" --master-port=24712 --rdzv-id=4711\.\w{16}\.2\.", second)
        assert ended.env["TRAINER_ATTEMPT"] == "2"
        assert sorted(folder.name for folder in (ended.run_dir / "logs").iterdir()) == ["1", "2"]
        assert_restarted(ended.err, 2, "node1, node2")
        assert ended.err.count(" 2 nodes x 2 GPUs ") == 2

    def test_a_crash_that_gains_nothing_is_tried_once_more(self, run):
        ended = run(STUB_ON_TRAIN=dies(9))
        assert (ended.code, len(launches(ended))) == (1, 2)
        assert_warning(ended.err, "no-restart", " 0 ")

    def test_one_that_gains_steps_is_restarted_up_to_the_limit(self, run):
        ended = run(STUB_ON_TRAIN=dies(9, before=SAVE))
        assert (ended.code, len(launches(ended))) == (1, 4)
        assert_warning(ended.err, "no-restart", " 3 ", "SLIPWAY_MAX_RESTARTS")

    @pytest.mark.parametrize(
        ("verdict", "times", "code"),
        [
            ("failed 3 NaN", 1, 5),
            ("stopped 3 user", 1, 75),
            ("stopped 3 signal", 1, 75),
            ("stopped 3 launcher", 2, 75),
        ],
    )
    def test_a_verdict_ends_the_run_unless_its_launcher_died(self, run, verdict, times, code):
        ended = run(STUB_VERDICT=verdict, STUB_CODE="5")
        assert (ended.code, len(launches(ended))) == (code, times), ended

    @pytest.mark.parametrize(
        "verdict", ["", "failed 0 x", "stopped 3 launcher", "out-of-time 9 time-limit", "done 9 x"]
    )
    @pytest.mark.parametrize("code", ["2", "78"])
    def test_a_cause_decides_and_is_never_tried_again(self, run, code, verdict):
        leave = f'echo "{code} no-data: node2: [rank 1] x" >"$RUN_DIR/logs/$TRAINER_ATTEMPT/cause"'
        ended = run(STUB_ON_TRAIN=leave, STUB_CODE="1", STUB_VERDICT=verdict)
        assert (ended.code, len(launches(ended)), ended.requeued) == (int(code), 1, False), ended
        assert_error(ended.err, "no-data", "node2: [rank 1] x", code, ended.run_dir / "logs" / "1" / "stderr.log")
        assert "[no-data]" in ended.notes[-1]

    def test_one_of_a_later_attempt_too(self, run):
        leave = '[ "$TRAINER_ATTEMPT" = 1 ] || echo "78 x" >"$RUN_DIR/logs/$TRAINER_ATTEMPT/cause"; exit 1'
        ended = run(STUB_ON_TRAIN=leave)
        assert (ended.code, len(launches(ended)), ended.requeued) == (78, 2, False), ended

    def test_one_of_an_earlier_attempt_is_not_read(self, run):
        late = '[ "$TRAINER_ATTEMPT" = 1 ] || echo "78 x" >"$RUN_DIR/logs/1/cause"; '
        ended = run(STUB_ON_TRAIN=dies(1, before=late))
        assert (ended.code, len(launches(ended))) == (0, 2), ended

    @pytest.mark.parametrize("text", ["", "1 x\\n", "a[$(id)] x"])  # others: TestRestart.test_attempt_has_cause
    def test_what_is_no_cause_is_passed_over(self, run, text):
        leave = f"""printf '{text}' >"$RUN_DIR/logs/$TRAINER_ATTEMPT/cause"; """
        ended = run(STUB_ON_TRAIN=dies(1, before=leave))
        assert (ended.code, len(launches(ended))) == (0, 2), ended

    @pytest.mark.parametrize("make", ["mkdir", "mkfifo", "ln -s /dev/zero"])
    def test_nor_is_anything_but_a_file_read(self, run, make):
        ended = run(STUB_ON_TRAIN=dies(1, before=f'{make} "$RUN_DIR/logs/$TRAINER_ATTEMPT/cause"; '))
        assert (ended.code, len(launches(ended))) == (0, 2), ended

    def test_a_users_script_can_leave_one_too(self, run):
        leave = 'echo "78 x" >"$RUN_DIR/logs/$TRAINER_ATTEMPT/cause"'
        for code in ("0", "1"):
            ended = run(SLIPWAY_SCRIPT="my train.py", STUB_ON_TRAIN=leave, STUB_CODE=code)
            assert (ended.code, len(launches(ended)), ended.requeued) == (78, 1, False), ended

    def test_where_the_next_job_of_a_chain_would_go_on_there_is_none(self, run, project):
        (project.spool / "nodes").write_text("node2\n")
        leave = (
            'echo "78 x" >"$RUN_DIR/logs/$TRAINER_ATTEMPT/cause"; echo "out-of-time 9 time-limit" >"$RUN_DIR/verdict.1"'
        )
        env = {"SLIPWAY_LIB": str(SCRIPTS / "lib"), "SLIPWAY_DEVICE": "cpu", "SLIPWAY_RANKS_PER_NODE": "2"}
        ended = run("ddp.pbs", STUB_ON_TRAIN=leave, STUB_NODES="node2", **env)
        assert (ended.code, ended.of("qsub")) == (78, []), ended

    # once: the same words were tried once more, and the job was requeued where a time limit came meanwhile
    @pytest.mark.parametrize("own", ["", "my train.py"])
    def test_a_launcher_that_refuses_its_words_is_not_started_again(self, run, own):
        said = 'echo "torchrun: error: unrecognized arguments: --x" >&2; exit 2'
        ended = run(STUB_ON_TRAIN=said, SLIPWAY_SCRIPT=own)
        assert (ended.code, len(launches(ended)), ended.requeued) == (78, 1, False), ended
        assert_error(ended.err, "launch-refused", "--x", ended.run_dir / "logs" / "1" / "stderr.log")

    def test_root_without_leave_is_told_before_the_launch(self, run):
        if os.geteuid():
            pytest.skip("not root")
        ended = run("horovod.job", OMPI_ALLOW_RUN_AS_ROOT=None)
        ended.assert_refused("mpi-as-root")
        assert [words for words in ended.of("mpirun") if words[1] != "--version"] == []

    def test_none_at_all(self, run):
        ended = run(STUB_ON_TRAIN=dies(9), SLIPWAY_MAX_RESTARTS="0")
        assert (ended.code, len(launches(ended))) == (1, 1)

    @pytest.mark.parametrize("script", ["ddp.sh", "ddp.pbs", "horovod-gloo.job", "horovod.job", "ddp-ranks.job"])
    def test_under_other_schedulers_and_launchers(self, run, script, project):
        (project.spool / "nodes").write_text("node2\n")
        env = {"SLIPWAY_RANKS_PER_NODE": "2", "SLIPWAY_DEVICE": "cpu", "SLIPWAY_LIB": str(SCRIPTS / "lib")}
        ended = run(script, STUB_ON_TRAIN=dies(1), STUB_NODES="node2", **env)
        assert ended.code == 0, ended
        assert_restarted(ended.err, 2, "node2" if script == "ddp.pbs" else "")

    def test_the_code_of_a_users_script_stands(self, run):
        ended = run(SLIPWAY_SCRIPT="my train.py", STUB_CODE="7")
        assert (ended.code, len(launches(ended)), ended.notes) == (7, 1, [])

    def test_one_with_a_session_is_restarted(self, run):
        ended = run(SLIPWAY_SCRIPT="my train.py", STUB_ON_TRAIN=dies(1, before=BEGUN))
        assert (ended.code, len(launches(ended))) == (0, 2), ended

    # once: 0, so the scheduler said COMPLETED
    def test_its_0_without_a_verdict_is_no_success(self, run):
        for restarts in ("1", "0"):
            ended = run(SLIPWAY_SCRIPT="my train.py", STUB_ON_TRAIN=f"{BEGUN}exit 0", SLIPWAY_MAX_RESTARTS=restarts)
            assert (ended.code, len(launches(ended)), ended.requeued) == (1, 1 + int(restarts), False), ended
            assert_error(ended.err, "rank-failed")
        kill = 'kill -TERM "$STUB_SCRIPT_PID"; sleep 0.2; '
        ended = run(SLIPWAY_SCRIPT="my train.py", STUB_ON_TRAIN=f"{BEGUN}{kill}exit 0")
        assert (ended.code, len(launches(ended))) == (75, 1), ended

    def test_a_time_limit_meanwhile_lets_the_next_job_go_on(self, run):
        dies_late = 'kill -USR1 "$STUB_SCRIPT_PID"; sleep 0.5; exit 1'
        ended = run(STUB_ON_TRAIN=SAVE + dies_late)
        assert (ended.code, len(launches(ended)), ended.requeued) == (75, 1, True)
        assert_warning(ended.err, "requeued", "(requeue)", "1", " 10")
        # once: requeued with nothing gained
        ended = run(STUB_ON_TRAIN=dies_late)
        assert (ended.code, len(launches(ended)), ended.requeued) == (1, 1, False)
        assert_warning(ended.err, "no-restart", "1")

    # once: it waited 20 s for the verdict of ranks that had ended
    def test_a_signal_meanwhile_ends_the_job(self, run):
        ask = '[[ "$*" != *echo* ]] || kill "$STUB_SCRIPT_PID"'
        ended = run(STUB_ON_TRAIN="exit 1", STUB_ON_SRUN=ask, SLIPWAY_PROBE_SECONDS="0.3", SLURMD_NODENAME="node1")
        assert (ended.code, len(launches(ended)), ended.requeued) == (75, 1, False)


class TestNodes:
    def test_a_spare_is_prepared_and_replaces_a_lost_node(self, run):
        ended = run(STUB_ON_TRAIN=dies(1), **DEAD, **SPARE)
        assert ended.code == 0, ended
        assert_warning(ended.err, "node-lost", "1", "node2", "DOWN")
        assert_restarted(ended.err, 2, "node1, node3")
        steps = [" ".join(words) for words in ended.of("srun")]
        torchruns = [step for step in steps if "torchrun" in step]
        assert ["--nodelist=node1,node2" in torchruns[0], "--nodelist=node1,node3" in torchruns[1]] == [True, True]
        (check,) = [step for step in steps if "trainer.preflight" in step]
        assert "--nodes=3 --ntasks=3" in check
        assert ended.env["TRAINER_WORLD_SIZE"] == "4"

    def test_without_one_the_job_goes_back_to_the_queue(self, run):
        ended = run(STUB_ON_TRAIN=dies(1), **DEAD)
        assert (ended.code, ended.requeued) == (75, True)
        assert_warning(ended.err, "no-restart", "1", " 2 ", "SLIPWAY_SPARES", "SLIPWAY_SHRINK=1")
        (said,) = [line for line in ended.err.splitlines() if "warning[requeued]" in line]
        assert ("(requeue)" in said, numbers(said)) == (True, [1, 2, 1, 10])

    def test_it_goes_on_with_fewer_where_it_may(self, run):
        ended = run(STUB_ON_TRAIN=dies(1), SLIPWAY_SHRINK="1", **DEAD)
        assert (ended.code, ended.env["TRAINER_WORLD_SIZE"]) == (0, "2")
        (said,) = [line for line in ended.err.splitlines() if "warning[fewer-nodes]" in line]
        assert numbers(said) == [1, 2]
        assert [ended.err.count(f" {nodes} x 2 GPUs") for nodes in ("2 nodes", "1 node")] == [1, 1]

    def test_the_loss_of_a_node_restarts_a_users_script_too(self, run):
        train = '[ "$TRAINER_ATTEMPT" = 2 ] || exit 7'
        ended = run(SLIPWAY_SCRIPT="my train.py", STUB_ON_TRAIN=train, **DEAD, **SPARE)
        assert (ended.code, len(launches(ended))) == (0, 2), ended

    # once: a script that failed by itself was requeued since a spare node had died, or with any code
    @pytest.mark.parametrize(("code", "down"), [("2", "node2"), ("78", "node2"), ("7", "node3")])
    def test_but_not_what_has_failed_by_itself(self, run, code, down):
        dead = {"STUB_ON_SRUN": REFUSES.replace("node2", down), "STUB_DOWN": down}
        ended = run(SLIPWAY_SCRIPT="my train.py", STUB_ON_TRAIN=f"exit {code}", **dead, **SPARE)
        assert (ended.code, len(launches(ended)), ended.requeued) == (int(code), 1, False), ended

    # once: such a node was called lost, and the job requeued
    @pytest.mark.parametrize("env", [{}, {"SLIPWAY_SCRIPT": "my train.py"}])
    def test_one_that_is_slow_is_asked_again(self, run, env, tmp_path):
        (tmp_path / "told").write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/events\n')
        (tmp_path / "told").chmod(0o755)
        slow = {"SLIPWAY_PROBE_SECONDS": "0.5", "STUB_ON_SRUN": SLOW, "SLIPWAY_NOTIFY": str(tmp_path / "told")}
        ended = run(STUB_ON_TRAIN=dies(1), **slow, **env)
        assert (ended.code, len(launches(ended)), ended.requeued) == ((1, 1, False) if env else (0, 2, False)), ended
        assert not {"node-lost", "node-silent"} & set(slugs(ended.err))
        assert set((tmp_path / "events").read_text().split()) == {"end"} | ({"restart"} if not env else set())

    # once: it was called lost, whatever Slurm said of it
    def test_one_that_only_does_not_answer_is_left_out_and_comes_back(self, run, tmp_path):
        (tmp_path / "told").write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/events\n')
        (tmp_path / "told").chmod(0o755)
        refuses = f'[ "${{TRAINER_ATTEMPT:-}}" != 1 ] || {{ {REFUSES}:; }}; '
        refuses += '[ "${TRAINER_ATTEMPT:-}" != 2 ] || [[ "$*" != *"--nodelist=node3 "* ]] || exit 1; '
        ended = run(STUB_ON_TRAIN=dies(2), STUB_ON_SRUN=refuses, SLIPWAY_NOTIFY=str(tmp_path / "told"), **SPARE)
        assert ended.code == 0, ended
        assert [slugs(ended.err).count(slug) for slug in ("node-lost", "node-silent")] == [0, 2]
        assert_restarted(ended.err, 2, "node1, node3")
        assert_restarted(ended.err, 3, "node1, node2", restart=2)
        assert sorted((tmp_path / "events").read_text().split()) == ["end", "restart", "restart"]

    def test_a_node_where_a_process_was_killed_is_replaced_first(self, run):
        said = 'echo "srun: error: node1: task 0: Killed" >&2; '
        ended = run(STUB_ON_TRAIN=dies(1, before=said), **SPARE)
        assert ended.code == 0, ended
        assert_warning(ended.err, "rank-killed", " 1", "node1", ended.run_dir / "logs" / "1" / "stderr.log")
        assert_restarted(ended.err, 2, "node2, node3")

    def test_the_second_time_its_administrator_is_told(self, run):
        said = 'echo "srun: error: node1: task 0: Killed" >&2; '
        ended = run(STUB_ON_TRAIN=dies(2, before=said + SAVE))
        assert ended.code == 0, ended
        assert_warning(ended.err, "node-suspect", "node1")

    # once: 78, as if a setting were wrong
    @pytest.mark.parametrize("fails", ["STUB_ON_ADDRESS", "STUB_ON_GETENT"])
    def test_a_head_node_that_does_not_answer_before_a_restart_is_one_more_death(self, run, fails):
        once = {fails: '[ "${TRAINER_ATTEMPT:-}" != 2 ] || exit 1'}
        ended = run(STUB_ON_TRAIN=dies(1, before=SAVE), **once)
        assert (ended.code, len(launches(ended)), ended.env["TRAINER_ATTEMPT"]) == (0, 2, "3"), ended
        assert_error(ended.err, "no-master-address", "node1")

    def test_where_no_node_answers_nothing_is_restarted(self, run):
        ended = run(STUB_ON_TRAIN="exit 1", STUB_ON_SRUN='[[ "$*" != *echo* ]] || exit 1')
        assert (ended.code, len(launches(ended)), ended.requeued) == (1, 1, False)
        assert_warning(ended.err, "no-restart", socket.gethostname())

    # once: no word of how the run goes on
    def test_what_died_and_does_not_go_on_is_told_how_it_does(self, run):
        for env in ({}, {"SLIPWAY_SCRIPT": "my train.py", "STUB_ON_TRAIN": 'echo x >"$RUN_DIR/status.json"; exit 1'}):
            ended = run(**{"STUB_ON_TRAIN": "exit 1", "SLIPWAY_MAX_RESTARTS": "0", **DEAD, **env})
            assert (ended.code, ended.requeued) == (1, False), ended
            assert (ended.way_on[0], ended.way_on[-1]) == ("sbatch", str(ended.run_dir / "job.sh"))

    # once: 75, and no requeue, as its ranks had had the time to save
    def test_with_too_few_nodes_a_launcher_s_death_is_a_death_too(self, run):
        saved = 'echo "stopped 9 launcher" >"$RUN_DIR/verdict.$TRAINER_ATTEMPT"; exit 1'
        ended = run(STUB_ON_TRAIN=saved, **DEAD)
        assert (ended.code, ended.requeued) == (75, True), ended

    def test_too_many_spares(self, run):
        ended = run(SLIPWAY_SPARES="2")
        assert ended.code == 78
        assert_error(ended.err, "too-few-nodes", "SLIPWAY_SPARES=2", " 2 ")
