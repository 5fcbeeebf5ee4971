"""Scripts with Lightning, Fabric and Accelerate: stopped or killed, they resume and end like an uninterrupted run."""

import json
import os
import re
import signal
from contextlib import contextmanager

import pytest

from messages import slugs
from session_runs import content, finish, saved_step, words
from support import started, status, verdict

RANKS = [pytest.param(1, marks=pytest.mark.prove), 2]


@contextmanager
def saved_once(name, ranks, folder, *flags):
    """Start a script and yield it after its first save."""
    with started(words(name, ranks, *flags), folder.with_suffix(".log"), RUN_DIR=str(folder)) as launch:
        launch.until(lambda: saved_step(folder) > 0, "checkpoint")
        yield launch


def seen(folder, rank):
    return [json.loads(line) for line in (folder.with_name(f"{folder.name}.seen.{rank}")).read_text().splitlines()]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """Return a function that returns the folder of an uninterrupted run, created at the first call."""
    folder = tmp_path_factory.mktemp("whole")

    def of(name, ranks):
        found = folder / f"{name}.{ranks}"
        if not found.exists():
            finish(name, ranks, [], found)
        return found

    return of


def killed_and_resumed(name, ranks, folder, *flags):
    """Kill a run after it has saved and resume it to its end; return the content of its folder and its last output."""
    with saved_once(name, ranks, folder, *flags) as launch:
        launch.kill()
    said = finish(name, ranks, [], folder)
    assert status(folder)["state"] == "done"
    return content(folder), said


@pytest.mark.parametrize("ranks", RANKS)
def test_killed_lightning_run_resumes_and_matches_uninterrupted_run(ranks, tmp_path, whole_run):
    found, _ = killed_and_resumed("under_lightning", ranks, tmp_path / "broken", "--pause", "0.1")
    assert found == content(whole_run("under_lightning", ranks))


@pytest.mark.parametrize("ranks", RANKS)
def test_killed_accelerate_run_resumes_and_matches_uninterrupted_run(ranks, tmp_path, whole_run):
    found, _ = killed_and_resumed("with_accelerate", ranks, tmp_path / "broken")
    assert found == content(whole_run("with_accelerate", ranks))


def test_killed_fabric_run_resumes_and_matches_uninterrupted_run(tmp_path, whole_run):
    found, said = killed_and_resumed("with_fabric", 2, tmp_path / "broken")
    assert found == content(whole_run("with_fabric", 2))
    assert slugs(said) == []


@pytest.mark.parametrize("ranks", RANKS)
def test_signal_to_one_rank_stops_lightning_in_mid_epoch(ranks, tmp_path, whole_run):
    whole, stopped = whole_run("under_lightning", ranks), tmp_path / "stopped"
    with saved_once("under_lightning", ranks, stopped, "--pause", "0.1") as launch:
        last = launch.rank_pids(ranks - 1)[0] if ranks > 1 else launch.process.pid  # before its workers
        os.kill(last, signal.SIGUSR1)
        assert launch.wait() == (75 if ranks == 1 else 0), launch.output
    step = status(stopped)["step"]
    assert (verdict(stopped), saved_step(stopped)) == (f"out-of-time {step} time-limit\n", step)
    assert re.search(rf"\bstopped \(time-limit\).* {step}\b", launch.output)
    assert "fitted" not in launch.output
    finish("under_lightning", ranks, [], stopped)
    assert verdict(stopped, 2) == f"done {saved_step(whole)} complete\n"
    assert content(stopped) == content(whole)
    for rank in range(ranks):
        assert seen(stopped, rank) == seen(whole, rank)
