"""Launch of the ranks: its exit code, messages, a port in use, signals and full disks."""

import random
import re
import signal
import subprocess

import pytest

from bash_library import ANSWER, LIB, assert_dies, wait_until
from messages import assert_warning, numbers


@pytest.mark.parametrize(("sent", "slug", "code"), [("USR1", "time-too-short", 78), ("TERM", "stopped-early", 75)])
def test_signal_before_launch_ends_job(bash, sent, slug, code):
    assert_dies(bash(f"catch_signals; kill -{sent} $$; sleep 1; echo no"), slug, code=code)


def test_run_step_records_exit_code_and_stderr(bash):
    run = 'MASTER_PORT=1; step() { echo said >&2; exit 3; }; run_launch step; echo "$code $cancelled"; '
    run += "cat run/logs/2/{code,stderr.log}"
    code, out, err = bash(run)
    assert (code, out) == (0, "3 0\n3\nsaid\n")
    assert err == bash("log_ranks")[2] + "said\n"


def test_step_exit_code_survives_signals(bash):
    """A hundred tries of a step that ends while signals arrive: Bash 5.2 lost 50 of 300 exit codes this way."""
    run = """
    script=$$
    step() { sleep 0.0$((RANDOM % 3)); exit 7; }
    trap : USR1
    (trap '' USR1; while kill -USR1 "$script"; do sleep 0.00$((RANDOM % 9)); done) 2>/dev/null &
    sender=$!
    trap 'kill "$sender"' EXIT
    for try in {1..100}; do
        launch_once step
        echo "$code"
    done
    """
    code, out, _ = bash(run)
    assert (code, out.split()) == (0, ["7"] * 100)


class TestFullDisk:
    """Regression: exit code 1 without a slug, and 1 instead of the 0 of a user's script."""

    FULL = "trap '' XFSZ; ulimit -f 0; "

    def test_begin_attempt_fails_with_cannot_write(self, bash, place):
        assert_dies(bash(f"{self.FULL}(begin_attempt 5)"), "cannot-write", place / "run" / "logs")

    @pytest.mark.parametrize(
        ("step", "code"),
        [
            ("step() { :; }", 0),
            ("step() { return 7; }", 7),
            ("step() { :; }; time_limit_came=1", 1),  # which may have lost the verdict
            ("step() { record_pid; }", 78),
        ],
    )
    def test_exit_code_of_ranks_is_kept(self, bash, step, code):
        assert bash(f'{self.FULL}{step}; launch_once step; echo "$code"').out == f"{code}\n"


def test_rank_messages_are_streamed_to_job_log(bash):
    step = "MASTER_PORT=1; step() { echo one >&2; sleep 1; echo two >&2; }; "
    out = bash(f'{step}launch_once step 2>&1 | while read -r word; do echo "$word $SECONDS"; done').out
    assert re.fullmatch("one ([01])\ntwo ([12])\n", out)


def test_keep_ends_keeps_first_and_last_megabytes(place):
    """It keeps the first and last megabytes, also while it runs, and delays nothing."""
    file = place / "log"
    lines = random.Random(0).randbytes(25_000_000)
    with subprocess.Popen(["sh", LIB / "keep_ends.sh", file], stdin=subprocess.PIPE) as copier:
        copier.stdin.write(b"no line")
        copier.stdin.flush()
        wait_until(lambda: file.exists() and file.read_bytes() == b"no line")
        copier.stdin.write(lines)
        copier.stdin.flush()
        assert sum(path.stat().st_size for path in place.iterdir()) < 30_000_000, "including the unfinished file"
        wait_until(lambda: file.read_bytes().endswith(lines[-100:]))
        assert file.stat().st_size < 20_100_000
    said, kept = b"no line" + lines, file.read_bytes()
    assert [path.name for path in place.iterdir()] == ["log"]
    assert (kept[:1_000_000], kept[-9_000_000:]) == (said[:1_000_000], said[-9_000_000:])
    assert numbers(kept[1_000_000:-9_000_000].decode()) == [len(said) - 10_000_000]


def test_keep_ends_continues_reading_if_write_fails(place):
    done = subprocess.run(["sh", LIB / "keep_ends.sh", place], input=bytes(1 << 20), capture_output=True, check=True)
    assert done.returncode == 0


# regression: after one failed write it kept nothing, even when the disk had space again
def test_keep_ends_resumes_writing_after_failed_write(place):
    file = place / "later" / "log"
    command = ["sh", LIB / "keep_ends.sh", file]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as copier:
        copier.stdin.write(b"one\n")
        copier.stdin.flush()
        said = copier.stderr.readline()  # it could not
        file.parent.mkdir()

        def comes():
            copier.stdin.write(b"x\n")
            copier.stdin.flush()
            return file.exists() and file.stat().st_size

        wait_until(comes)
        copier.stdin.write(b"last\n")
        copier.stdin.close()
        assert copier.wait(60) == 0
        assert (bool(said), copier.stderr.read()) == (True, b"")
    assert file.read_bytes().endswith(b"x\nlast\n")


def test_copy_stderr_logs_process_that_outlives_launch(bash, place):
    """The library keeps its later output, and closes what others take for the script's sign of life."""
    run = "exec {watcher}> >(cat >/dev/null; echo >over); reader=$!; "
    run += "step() { { until [ -e over ]; do sleep 0.1; done; echo two >&2; } & echo one >&2; }; "
    run += "launch_once step >/dev/null 2>&1; cat run/logs/2/stderr.log; exec {watcher}>&-; wait_for_process $reader"
    assert bash(run)[:2] == (0, "one\n")
    wait_until(lambda: (place / "run" / "logs" / "2" / "stderr.log").read_text() == "one\ntwo\n")


def test_copy_stderr_outlives_killed_script(bash, place):
    run = "kill_stuck_launcher() { :; }; step() { echo one >&2; kill -KILL $$; sleep 0.1; echo two >&2; }; "
    assert bash(f"{run}launch_once step")[0] == -signal.SIGKILL
    wait_until(lambda: (place / "run" / "logs" / "2" / "stderr.log").read_text() == "one\ntwo\n")


COUNT = 'sleep() { slept+=($1); }; env sleep 59 & wait_for_stderr_copy $!; kill $!; echo "${slept[@]: -4} ${#slept[@]}"'
LIVES = (
    "close_descriptors; sleep 0 & wait_for_stderr_copy $!; "
    "launch_runs() { :; }; sleep 59 & wait_for_stderr_copy $!; kill $!"
)


@pytest.mark.parametrize(
    ("code", "out"),
    [
        ('copy_stderr said <<<"one" 2>&1; cat said', "one\none\n"),
        (LIVES, ""),
        (COUNT, "1 1 1 1 80\n"),
        # regression: 31 s, and SIGKILL comes 30 s after the SIGTERM of scancel
        (f"cancelled=1; {COUNT}", "0.02 1 1 1 53\n"),
        (f"time_limit_came=1; {COUNT}", "0.02 1 1 1 53\n"),
    ],
)
def test_wait_for_stderr_copy_is_limited(bash, code, out):
    assert bash(code)[:2] == (0, out)


# regression: these two held open what must end with the script, and guard.sh considered it alive
@pytest.mark.parametrize("call", ["launch_once step", "start_server 9 x.py"])
def test_surviving_processes_do_not_hold_heartbeat_open(bash, place, call):
    look = "for _ in {1..80}; do [ ! -e over ] || exec touch seen; sleep 0.05; done"
    run = f"exec {{heartbeat}}> >(cat >/dev/null; echo >over); step() {{ kill -KILL $$; {look}; }}; "
    python = {"python3": f'{ANSWER}answer "$2" x; echo; {look}'}
    assert bash(f"exec >out 2>&1; {run}{call}; kill -KILL $$", programs=python).code == -signal.SIGKILL
    wait_until((place / "seen").exists)


# regression: the first launch's copy continued into the second launch's file
def test_retry_after_port_in_use_has_separate_stderr_log(bash):
    first = 'echo "port: 1, x: EADDRINUSE" >&2; { until [ -e go ]; do sleep 0.05; done; echo old >&2; } & exit 1'
    run = "wait_for_stderr_copy() { sleep 0.2; }; MASTER_PORT=1 BACKEND=ddp port_is_given=''; "
    run += f"step() {{ mkdir once 2>/dev/null || {{ touch go; sleep 0.3; echo new >&2; exit 3; }}; {first}; }}; "
    code, out, err = bash(f'{run}run_launch step; echo "$code"; cat run/logs/2/stderr.log')
    assert (code, out) == (0, "3\nnew\n")
    assert_warning(err, "port-taken", "1")


@pytest.mark.parametrize(
    ("before", "taken"),
    [
        (":", True),
        ("echo >run/logs/2/stderr.log", False),
        ("BACKEND=horovod", False),
        ("port_is_given=1", False),
        ("touch run/verdict.2", False),
        ("SECONDS=100 began=0", False),
        ("echo 78 x >run/logs/2/cause", False),
    ],
)
def test_port_was_taken_detects_eaddrinuse(bash, before, taken):
    said = "W c10d: failed to listen. port: 24711, useIpv6: false, code: -98, name: EADDRINUSE, message: in use"
    ask = 'MASTER_PORT=24711; port_was_taken "${began-$SECONDS}" && echo yes || echo no'
    assert bash(f"echo '{said}' >run/logs/2/stderr.log; {before}; {ask}").out == ("yes\n" if taken else "no\n")
