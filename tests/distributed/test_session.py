"""Scripts with a session: signals to all processes, other numbers of ranks, and errors."""

import json
import os
import random
import signal
import time

import pytest

from messages import assert_names, slugs
from session_runs import SCRIPTS, content, finish, saved_step, words
from slipway.base.slugs import SLUGS
from support import launch_words, output_of, started, status, verdict

EPOCH = 400
"""Steps in an epoch, enough for a test to stop within it."""


@pytest.mark.parametrize(
    ("context", "number"),
    [
        ("fork", signal.SIGTERM),
        pytest.param("spawn", signal.SIGTERM, marks=pytest.mark.prove),
        pytest.param("fork", signal.SIGUSR1, marks=pytest.mark.prove),
        pytest.param("spawn", signal.SIGUSR1, marks=pytest.mark.prove),
        pytest.param("forkserver", signal.SIGTERM, marks=pytest.mark.prove),
    ],
    ids=str,
)
def test_signal_to_all_processes_stops_cleanly_with_loader_workers(context, number, tmp_path):
    """Loader workers survive it, even during start: those of the first epoch, then those of its validation."""
    draw = random.Random(f"{context} {number}")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    flags = ["--epochs", "2", "--samples", str(8 * EPOCH), "--workers", "2", "--context", context]
    finish("classifier", 1, flags, whole)
    reason = "time-limit" if number == signal.SIGUSR1 else "signal"
    for attempt, sign in enumerate(["run folder", "validating"], 1):
        with started(words("classifier", 1, *flags), tmp_path / "log", RUN_DIR=str(stopped)) as launch:
            launch.until(lambda sign=sign: sign in launch.output, sign)
            if attempt == 1:
                time.sleep(draw.random() * (1 if context == "fork" else 4))
            for pid in launch.pids():
                os.kill(pid, number)
            code = launch.wait()
        assert (code, status(stopped)["reason"]) == (75, reason), launch.output
        assert verdict(stopped, attempt)
        step = status(stopped)["step"]
        assert step < EPOCH if attempt == 1 else step == EPOCH
    finish("classifier", 1, flags, stopped)
    assert content(stopped) == content(whole)


def test_epoch_resumes_on_different_number_of_ranks(tmp_path, table):
    out, rows = tmp_path / "run", []
    for ranks, stop_after in [(2, 3), (1, 3), (2, -1)]:
        log = tmp_path / f"{ranks}.log"
        code = 75 if ranks == 1 else 0
        output_of(words("sampled", ranks), log, code=code, RUN_DIR=str(out), STOP_AFTER=str(stop_after))
        rows.append((f"{ranks} rank(s)", f"{status(out)['state']} at step {status(out)['step']}"))
    attempts = {}
    for file in out.glob("seen.*.json"):
        first, batches = json.loads(file.read_text())
        attempts.setdefault(first, []).append(batches)
    ends = [*sorted(attempts)[1:], status(out)["step"]]
    seen = [
        sample
        for (first, ranks), end in zip(sorted(attempts.items()), ends, strict=True)
        for batches in ranks
        for batch in batches[: end - first]
        for sample in batch
    ]
    assert len(attempts) == 3
    assert sorted(seen) == list(range(203))
    table("an epoch of 203 samples", [*rows, ("samples seen", f"{len(seen)}, each once")])


@pytest.mark.horovod
def test_killed_horovod_run_resumes_and_matches_uninterrupted_run(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    command = launch_words("horovodrun", 2, program=[str(SCRIPTS / "under_horovod.py")])[:-1]
    output_of(command, tmp_path / "whole.log", RUN_DIR=str(whole))
    with started(command, tmp_path / "killed.log", RUN_DIR=str(broken)) as launch:
        launch.until(lambda: saved_step(broken) >= 21, "step 21")
        launch.kill()
    output_of(command, tmp_path / "again.log", RUN_DIR=str(broken))
    assert content(broken) == content(whole)


def test_second_run_in_folder_is_refused_and_first_continues(tmp_path):
    out = tmp_path / "run"
    flags = ["--epochs", "3000"]
    with started(words("mnist", 1, *flags), tmp_path / "first.log", RUN_DIR=str(out)) as first:
        first.until(lambda: saved_step(out) > 0, "checkpoint")
        said = output_of(words("mnist", 1, *flags), tmp_path / "second.log", code=1, RUN_DIR=str(out))
        assert set(slugs(said)) == {"folder-in-use"}
        assert_names(said, out, first.process.pid, SLUGS["folder-in-use"].remedy)
        (out / "STOP").write_text("user")
        assert first.wait() == 75
    assert status(out)["reason"] == "user"
