"""Restarts within the allocation: what is restarted, on which nodes, and when a job gives up."""

import json
import os
import re
import socket

import pytest

from messages import assert_error, assert_names, assert_warning, messages, numbers, slugs

SPARE = {"STUB_NODES": "node1 node2 node3", "SLIPWAY_SPARES": "1"}
REFUSES = '[[ "$*" != *"--nodelist=node2 "* ]] || exit 1; '
"""For STUB_ON_SRUN: node2 no longer starts processes."""
SLOW = '[[ "$*" != *"--nodelist=node2 "*echo* ]] || { echo >>"$STUB_LOG.asked"; sleep 0.7; }; '
"""For STUB_ON_SRUN: a process on node2 takes longer to start than a third of the allowed time."""
DEAD = {"STUB_ON_SRUN": REFUSES, "STUB_DOWN": "node2"}
"""The same, and Slurm reports it."""
SPARE_DEAD = {name: value.replace("node2", "node3") for name, value in DEAD.items()}
SAVE = 'mkdir -p "$RUN_DIR/checkpoints"; ln -sfn step_0000000$TRAINER_ATTEMPT "$RUN_DIR/checkpoints/latest"; '
"""For STUB_ON_TRAIN: each attempt saves one step more than the previous one."""
BEGUN = 'echo "{\\"attempt\\": $TRAINER_ATTEMPT, \\"state\\": \\"running\\"}" >"$RUN_DIR/status.json"; '
"""For STUB_ON_TRAIN: a script whose session has begun."""
KILLED = 'echo "srun: error: node1: task 0: Killed" >&2; '
"""For STUB_ON_TRAIN: srun's message about a killed rank."""
OWN = {"SLIPWAY_SCRIPT": "my train.py"}


def dies(times, *, before=""):
    """Return the code that makes so many attempts die, for STUB_ON_TRAIN; the next one completes."""
    done = 'echo "done 9 complete" >"$RUN_DIR/verdict.$TRAINER_ATTEMPT"; exit 0'
    return f'{before}[ "$TRAINER_ATTEMPT" -le {times} ] || {{ {done}; }}; exit 1'


@pytest.fixture
def run(project):
    """Return a function that runs a script with restarts."""
    return lambda script="ddp.job", **env: project.run(script, **{"SLIPWAY_MAX_RESTARTS": "3", **env})


@pytest.fixture
def one_node(project):
    """Return the environment of two ranks on a node without GPUs, for each scheduler."""
    (project.spool / "nodes").write_text("node2\n")
    return {"STUB_NODES": "node2", "SLIPWAY_DEVICE": "cpu", "SLIPWAY_RANKS_PER_NODE": "2"}


def launches(ended):
    """Return the command line of each torchrun."""
    return [" ".join(words) for words in ended.of("torchrun")]


def assert_restarted(err, attempt, nodes, *, restart=1):
    """Assert that an attempt began at step 0 as a restart, of at most 3, on these nodes."""
    found = [line.partition("warning[restarted]: ")[2] for line in err.splitlines() if "[restarted]" in line]
    assert [restart, 3, attempt, 0] in [numbers(text)[:4] for text in found], err
    assert_warning(err, "restarted", nodes)


@pytest.fixture
def program(tmp_path):
    """Return the path of a program for SLIPWAY_NOTIFY that records its arguments."""
    path = tmp_path / "it's told"
    path.write_text(f'#!/bin/sh\nprintf "%s|%s|%s\\n" "$@" >>{tmp_path}/told\necho said\nexit 3\n')
    path.chmod(0o755)
    return path


def told(program):
    """Return the arguments of each of its calls: event, run folder and message."""
    return [line.split("|") for line in sorted((program.parent / "told").read_text().splitlines())]


class TestNotifications:
    """The program of SLIPWAY_NOTIFY, and goodput.jsonl."""

    def test_notify_program_receives_restart_exclude_and_end(self, run, program):
        ended = run(SLIPWAY_NOTIFY=str(program), STUB_ON_TRAIN=dies(1), **DEAD, **SPARE)
        assert ended.code == 0, ended
        calls = told(program)
        assert [call[:2] for call in calls] == [[name, str(ended.run_dir)] for name in ("end", "exclude", "restart")]
        end, exclude, restart = [text for _, _, text in calls]
        assert (slugs(exclude), numbers(exclude), "node2" in exclude) == (["node-lost"], [1, 2], True)
        assert_restarted(restart, 2, "node1, node3")
        assert (numbers(end)[0], "2 nodes x 2 GPUs" in end) == (0, True)
        assert "said\n" in (ended.run_dir / "logs" / "2" / "notify.log").read_text()

    def test_hung_notify_program_is_killed(self, run, program):
        program.write_text("#!/bin/sh\nexec sleep 600\n")
        ended = run(SLIPWAY_NOTIFY=str(program), SLIPWAY_NOTIFY_SECONDS="0.3", STUB_ON_TRAIN=dies(0))
        assert ended.code == 0

    def test_goodput_records_begin_and_end_of_each_attempt(self, run):
        ended = run(STUB_ON_TRAIN=dies(1), **SPARE)
        lines = [json.loads(line) for line in (ended.run_dir / "goodput.jsonl").read_text().splitlines()]
        assert [sorted(line) for line in lines] == [["attempt", "began", "nodes", "spares"], ["attempt", "ended"]] * 2
        assert [line["attempt"] for line in lines] == [1, 1, 2, 2]
        assert (lines[0]["nodes"], lines[0]["spares"]) == (2, 1)
        assert lines[2]["began"] == lines[1]["ended"]

    def test_fifo_named_goodput_does_not_block_job(self, run, tmp_path):
        (tmp_path / "run").mkdir()
        os.mkfifo(tmp_path / "run" / "goodput.jsonl")
        (tmp_path / "run" / "logs" / "1").mkdir(parents=True)
        (tmp_path / "run" / "logs" / "1" / "job").write_text("slurm 1\n")  # a run was here before
        assert run(SLIPWAY_RUN_DIR=str(tmp_path / "run"), STUB_ON_TRAIN=dies(0)).code == 0


def test_node_lost_before_launch_is_replaced(run):
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
def test_killed_preflight_step_is_repeated_once(run, signals, restarts, code, tmp_path):
    left = tmp_path / "signals"
    left.write_text(signals.replace(" ", "\n") + "\n")
    kill = f'signal=$(head -n 1 "{left}"); sed -i 1d "{left}"; [ -z "$signal" ] || kill -"$signal" $$; '
    ended = run(
        STUB_ON_TRAIN=dies(0),
        STUB_ON_SRUN=f'[[ "$*" != *trainer.launch.preflight* ]] || {{ {kill} }}; ',
        SLIPWAY_MAX_RESTARTS=restarts,
    )
    assert ended.code == code, ended
    assert slugs(ended.err).count("step-repeated") == (restarts != "0")
    assert slugs(ended.err).count("node-not-ready") == (code == 78)


def assert_says(err, expected):
    """Assert that the output has a message with each of these slugs, which names these values."""
    said = {message.slug: message.text for message in messages(err)}
    for slug, *values in expected:
        assert_names(said[slug], *values)


LATE = 'kill -USR1 "$STUB_SCRIPT_PID"; sleep 0.5; exit 1'
"""For STUB_ON_TRAIN: the time limit is reached before a rank dies."""
CAUSE = 'echo "78 x" >"$RUN_DIR/logs/$TRAINER_ATTEMPT/cause"'
NO_CAUSES = {
    "empty": 'printf "" >{}',
    "code 1": 'echo "1 x" >{}',
    "no number": "echo 'a[$(id)] x' >{}",
    "folder": "mkdir {}",
    "fifo": "mkfifo {}",
    "device": "ln -s /dev/zero {}",
}
IN_USE = "warning: Address already in use"
NODE1_ONLY = '[[ "$*" == *--nodelist=node1* ]] || exit 1; '
NO_NODE = '[[ "$*" != *echo* ]] || exit 1'
SIGTERM = {"STUB_ON_SRUN": '[[ "$*" != *echo* ]] || kill "$STUB_SCRIPT_PID"', "SLIPWAY_PROBE_SECONDS": "0.3"}
REFUSED = {"STUB_ON_TRAIN": 'echo "torchrun: error: unrecognized arguments: --x" >&2; exit 2'}


@pytest.mark.parametrize(
    ("env", "code", "times", "requeued", "said"),
    [
        pytest.param(
            {"STUB_ON_TRAIN": dies(9)}, 1, 2, False, [("no-restart", " 0 ")], id="a-crash-that-gains-nothing-once-more"
        ),
        pytest.param(
            {"STUB_ON_TRAIN": dies(9, before=SAVE)}, 1, 4, False,
            [("no-restart", " 3 ", "SLIPWAY_MAX_RESTARTS")], id="one-that-gains-steps-up-to-the-limit",
        ),
        pytest.param({"STUB_ON_TRAIN": dies(9), "SLIPWAY_MAX_RESTARTS": "0"}, 1, 1, False, [], id="limit-0"),
        pytest.param({"STUB_ON_TRAIN": dies(0), "STUB_ON_SRUN": NODE1_ONLY}, 78, 0, False, [], id="no-spare-node"),
        pytest.param({"STUB_VERDICT": "failed 3 NaN", "STUB_CODE": "5"}, 5, 1, False, [], id="failed"),
        pytest.param({"STUB_VERDICT": "stopped 3 user", "STUB_CODE": "5"}, 75, 1, False, [], id="a-user-stopped-it"),
        pytest.param({"STUB_VERDICT": "stopped 3 signal", "STUB_CODE": "5"}, 75, 1, False, [], id="a-signal"),
        pytest.param({"STUB_VERDICT": "stopped 3 launcher", "STUB_CODE": "5"}, 75, 2, False, [], id="launcher-died"),
        # a port-taken warning is no reason to train again
        pytest.param({"STUB_ERROR": IN_USE, "STUB_VERDICT": "done 9 x"}, 0, 1, False, [], id="a-port-in-use"),
        pytest.param({"STUB_ERROR": IN_USE, **OWN}, 0, 1, False, [], id="a-port-in-use-with-a-user-s-script"),
        # a cause, which a rank writes that was refused before training
        pytest.param(
            {"STUB_ON_TRAIN": f'[ "$TRAINER_ATTEMPT" = 1 ] || {CAUSE}; exit 1'}, 78, 2, False, [],
            id="a-cause-of-a-later-attempt",
        ),
        pytest.param(
            {"STUB_ON_TRAIN": dies(1, before='[ "$TRAINER_ATTEMPT" = 1 ] || echo "78 x" >"$RUN_DIR/logs/1/cause"; ')},
            0, 2, False, [], id="a-cause-of-an-earlier-attempt-is-not-read",
        ),
        *(
            pytest.param(
                {"STUB_ON_TRAIN": dies(1, before=make.format('"$RUN_DIR/logs/$TRAINER_ATTEMPT/cause"; '))},
                0, 2, False, [], id=f"no-cause-{name}",
            )
            for name, make in NO_CAUSES.items()
        ),
        pytest.param({**OWN, "STUB_ON_TRAIN": CAUSE, "STUB_CODE": "0"}, 78, 1, False, [], id="a-user-s-cause-and-0"),
        pytest.param({**OWN, "STUB_ON_TRAIN": CAUSE, "STUB_CODE": "1"}, 78, 1, False, [], id="a-user-s-cause-and-1"),
        # regression: the same command was retried, and the job was requeued if a time limit came in between
        pytest.param(REFUSED, 78, 1, False, [("launch-refused", "--x", "/logs/1/stderr.log")], id="wrong-words"),
        pytest.param(REFUSED | OWN, 78, 1, False, [("launch-refused", "--x")], id="wrong-words-with-a-user-s-script"),
        # a user's script: its exit code stands unless it has a session, or a node is lost
        pytest.param({**OWN, "STUB_CODE": "7"}, 7, 1, False, [], id="a-user-s-script-fails"),
        pytest.param({**OWN, "STUB_ON_TRAIN": dies(1, before=BEGUN)}, 0, 2, False, [], id="a-session-dies"),
        # regression: 0, so the scheduler reported COMPLETED
        pytest.param(
            {**OWN, "STUB_ON_TRAIN": f"{BEGUN}exit 0", "SLIPWAY_MAX_RESTARTS": "1"}, 1, 2, False, [("rank-failed",)],
            id="a-session-ends-with-0-and-without-a-verdict",
        ),
        pytest.param(
            {**OWN, "STUB_ON_TRAIN": f"{BEGUN}exit 0", "SLIPWAY_MAX_RESTARTS": "0"}, 1, 1, False, [("rank-failed",)],
            id="the-same-with-limit-0",
        ),
        pytest.param(
            {**OWN, "STUB_ON_TRAIN": f'{BEGUN}kill -TERM "$STUB_SCRIPT_PID"; sleep 0.2; exit 0'}, 75, 1, False, [],
            id="the-same-by-SIGTERM",
        ),
        pytest.param(
            {**OWN, "STUB_ON_TRAIN": '[ "$TRAINER_ATTEMPT" = 2 ] || exit 7', **DEAD, **SPARE}, 0, 2, False, [],
            id="a-user-s-script-loses-a-node",
        ),
        # regression: a script that failed on its own was requeued since a spare node had died, or with any code
        *(
            pytest.param(
                {**OWN, "STUB_ON_TRAIN": f"exit {code}", **dead, **SPARE}, code, 1, False, [],
                id=f"a-user-s-script-fails-with-{code}-while-a-node-is-lost",
            )
            for code, dead in ((2, DEAD), (78, DEAD), (7, SPARE_DEAD))
        ),
        pytest.param(
            {"STUB_ON_TRAIN": SAVE + LATE}, 75, 1, True, [("requeued", "requeue", "1", " 10")],
            id="the-time-limit-came-with-a-step-saved",
        ),
        # regression: requeued
        pytest.param(
            {"STUB_ON_TRAIN": LATE}, 1, 1, False, [("no-restart", "1")], id="the-time-limit-came-with-nothing-gained"
        ),
        # regression: it waited 20 s for the verdict of ranks that had ended
        pytest.param(
            {"STUB_ON_TRAIN": "exit 1", **SIGTERM, "SLURMD_NODENAME": "node1"}, 75, 1, False, [], id="SIGTERM-meanwhile"
        ),
        pytest.param(
            {"STUB_ON_TRAIN": "exit 1", "STUB_ON_SRUN": NO_NODE}, 1, 1, False, [("no-restart", socket.gethostname())],
            id="no-node-answers",
        ),
        # regression: 75, and no requeue, as its ranks had had the time to save
        pytest.param(
            {"STUB_VERDICT": "stopped 9 launcher", "STUB_CODE": "1", **DEAD}, 75, 1, True, [],
            id="the-launcher-died-with-too-few-nodes",
        ),
    ],
)  # fmt: skip
def test_restart_count_exit_code_and_requeue_by_failure(  # noqa: PLR0917 -- the columns
    run, env, code, times, requeued, said
):
    ended = run(**env)
    assert (ended.code, len(launches(ended)), ended.requeued) == (code, times, requeued), ended
    assert_says(ended.err, said)


class TestAttempts:
    def test_each_attempt_has_separate_number_port_and_rendezvous(self, run):
        ended = run(STUB_ON_TRAIN=dies(1))
        assert ended.code == 0, ended
        first, second = launches(ended)
        assert re.search(r" --master-port=24711 --rdzv-id=4711\.\w{16}\.1\.", first)
        assert re.search(r" --master-port=24712 --rdzv-id=4711\.\w{16}\.2\.", second)
        assert ended.env["TRAINER_ATTEMPT"] == "2"
        assert sorted(folder.name for folder in (ended.run_dir / "logs").iterdir()) == ["1", "2"]
        assert_restarted(ended.err, 2, "node1, node2")
        assert ended.err.count(" 2 nodes x 2 GPUs ") == 2

    @pytest.mark.parametrize(
        "verdict", ["", "failed 0 x", "stopped 3 launcher", "out-of-time 9 time-limit", "done 9 x"]
    )
    @pytest.mark.parametrize("code", ["2", "78"])
    def test_cause_file_sets_exit_code_without_restart(self, run, code, verdict):
        leave = f'echo "{code} no-data: node2: [rank 1] x" >"$RUN_DIR/logs/$TRAINER_ATTEMPT/cause"'
        ended = run(STUB_ON_TRAIN=leave, STUB_CODE="1", STUB_VERDICT=verdict)
        assert (ended.code, len(launches(ended)), ended.requeued) == (int(code), 1, False), ended
        assert_error(ended.err, "no-data", "node2: [rank 1] x", code, ended.run_dir / "logs" / "1" / "stderr.log")
        assert "[no-data]" in ended.notes[-1]

    def test_cause_file_prevents_next_chained_job(self, run, one_node):
        leave = f'{CAUSE}; echo "out-of-time 9 time-limit" >"$RUN_DIR/verdict.1"'
        ended = run("ddp.pbs", STUB_ON_TRAIN=leave, **one_node)
        assert (ended.code, ended.of("qsub")) == (78, []), ended

    @pytest.mark.parametrize("script", ["ddp.sh", "ddp.pbs", "horovod-gloo.job", "horovod.job", "ddp-ranks.job"])
    def test_restart_under_other_schedulers_and_launchers(self, run, script, one_node):
        ended = run(script, STUB_ON_TRAIN=dies(1), **one_node)
        assert ended.code == 0, ended
        assert_restarted(ended.err, 2, "node2" if script == "ddp.pbs" else "")


class TestNodes:
    def test_spare_node_is_checked_and_replaces_lost_node(self, run):
        ended = run(STUB_ON_TRAIN=dies(1), **DEAD, **SPARE)
        assert ended.code == 0, ended
        assert_warning(ended.err, "node-lost", "1", "node2", "DOWN")
        assert_restarted(ended.err, 2, "node1, node3")
        steps = [" ".join(words) for words in ended.of("srun")]
        torchruns = [step for step in steps if "torchrun" in step]
        assert ["--nodelist=node1,node2" in torchruns[0], "--nodelist=node1,node3" in torchruns[1]] == [True, True]
        (check,) = [step for step in steps if "trainer.launch.preflight" in step]
        assert "--nodes=3 --ntasks=3" in check
        assert ended.env["TRAINER_WORLD_SIZE"] == "4"

    def test_job_is_requeued_without_spare_node(self, run):
        ended = run(STUB_ON_TRAIN=dies(1), **DEAD)
        assert (ended.code, ended.requeued) == (75, True)
        assert_warning(ended.err, "no-restart", "1", " 2 ", "SLIPWAY_SPARES", "SLIPWAY_SHRINK=1")
        (said,) = [line for line in ended.err.splitlines() if "warning[requeued]" in line]
        assert ("by requeue" in said, numbers(said)) == (True, [1, 2, 1, 10])

    def test_run_continues_with_fewer_nodes_if_shrink_is_set(self, run):
        ended = run(STUB_ON_TRAIN=dies(1), SLIPWAY_SHRINK="1", **DEAD)
        assert (ended.code, ended.env["TRAINER_WORLD_SIZE"]) == (0, "2")
        (said,) = [line for line in ended.err.splitlines() if "warning[fewer-nodes]" in line]
        assert numbers(said) == [1, 2]
        assert [ended.err.count(f" {nodes} x 2 GPUs") for nodes in ("2 nodes", "1 node")] == [1, 1]

    # regression: such a node counted as lost, and the job was requeued
    @pytest.mark.parametrize(("env", "code", "times", "events"), [({}, 0, 2, ["end", "restart"]), (OWN, 1, 1, ["end"])])
    def test_node_with_late_answer_is_probed_again(self, run, env, code, times, events, program):  # noqa: PLR0917 -- columns
        slow = {"SLIPWAY_PROBE_SECONDS": "0.5", "STUB_ON_SRUN": SLOW, "SLIPWAY_NOTIFY": str(program)}
        ended = run(STUB_ON_TRAIN=dies(1), **slow, **env)
        assert (ended.code, len(launches(ended)), ended.requeued) == (code, times, False), ended
        assert not {"node-lost", "node-silent"} & set(slugs(ended.err))
        assert [event for event, *_ in told(program)] == events

    # regression: it counted as lost, whatever Slurm reported
    def test_silent_node_is_excluded_and_used_again_later(self, run, program):
        refuses = f'[ "${{TRAINER_ATTEMPT:-}}" != 1 ] || {{ {REFUSES}:; }}; '
        refuses += '[ "${TRAINER_ATTEMPT:-}" != 2 ] || [[ "$*" != *"--nodelist=node3 "* ]] || exit 1; '
        ended = run(STUB_ON_TRAIN=dies(2), STUB_ON_SRUN=refuses, SLIPWAY_NOTIFY=str(program), **SPARE)
        assert ended.code == 0, ended
        assert [slugs(ended.err).count(slug) for slug in ("node-lost", "node-silent")] == [0, 2]
        assert_restarted(ended.err, 2, "node1, node3")
        assert_restarted(ended.err, 3, "node1, node2", restart=2)
        assert [event for event, *_ in told(program)] == ["end", "restart", "restart"]

    def test_node_with_killed_rank_is_replaced_first(self, run):
        ended = run(STUB_ON_TRAIN=dies(1, before=KILLED), **SPARE)
        assert ended.code == 0, ended
        assert_warning(ended.err, "rank-killed", " 1", "node1", ended.run_dir / "logs" / "1" / "stderr.log")
        assert_restarted(ended.err, 2, "node2, node3")

    def test_second_kill_on_node_gives_node_suspect_warning(self, run):
        ended = run(STUB_ON_TRAIN=dies(2, before=KILLED + SAVE))
        assert ended.code == 0, ended
        assert_warning(ended.err, "node-suspect", "node1")

    # regression: 78, as if a setting were wrong
    @pytest.mark.parametrize("fails", ["STUB_ON_ADDRESS", "STUB_ON_GETENT"])
    def test_silent_first_node_before_restart_counts_as_failed_attempt(self, run, fails):
        once = {fails: '[ "${TRAINER_ATTEMPT:-}" != 2 ] || exit 1'}
        ended = run(STUB_ON_TRAIN=dies(1, before=SAVE), **once)
        assert (ended.code, len(launches(ended)), ended.env["TRAINER_ATTEMPT"]) == (0, 2, "3"), ended
        assert_error(ended.err, "no-master-address", "node1")

    # regression: no message about how to continue the run
    @pytest.mark.parametrize(
        "env", [{"STUB_ON_TRAIN": "exit 1"}, {**OWN, "STUB_ON_TRAIN": 'echo x >"$RUN_DIR/status.json"; exit 1'}]
    )
    def test_continue_command_is_printed_if_no_restart_follows(self, run, env):
        ended = run(SLIPWAY_MAX_RESTARTS="0", **DEAD, **env)
        assert (ended.code, ended.requeued) == (1, False), ended
        assert (ended.continuation_words[0], ended.continuation_words[-1]) == ("sbatch", str(ended.run_dir / "job.sh"))
