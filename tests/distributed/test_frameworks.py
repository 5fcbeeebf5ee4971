"""Scripts of Lightning and Accelerate: stopped or killed, resumed, and what they end with."""

import json
import os
import re
import signal
import time

import pytest
import torch

from messages import slugs
from session_runs import records, saved_step, words
from support import started, status, verdict

RANKS = [pytest.param(1, marks=pytest.mark.prove), 2]


def run(name, ranks, folder, *flags, until=None, act=None, code=0):
    """Run a script to its end, or act on it once something holds; return what it said."""
    log = folder.with_name(f"{folder.name}.{time.monotonic_ns()}.log")
    with started(words(name, ranks, *flags), log, RUN_DIR=str(folder)) as launch:
        if act:
            launch.until(lambda: until(launch, folder), "its moment")
            act(launch)
        found = launch.wait()
        assert act is kill or found == code, launch.output
    return launch.output


def kill(launch):
    launch.kill()


def ask_last_rank(number, ranks):
    """Return what sends a signal to the last rank alone: the oldest process of its number, before its workers."""

    def ask(launch):
        os.kill(launch.rank_pids(ranks - 1)[0] if ranks > 1 else launch.process.pid, number)

    return ask


def seen(folder, rank):
    return [json.loads(line) for line in (folder.with_name(f"{folder.name}.seen.{rank}")).read_text().splitlines()]


def state(folder):
    path = folder / "checkpoints" / "latest" / "lightning.ckpt"
    found = torch.load(path, weights_only=False)
    moments = found["optimizer_states"][0]["state"]
    tensors = [*found["state_dict"].values(), *(value for entry in moments.values() for value in entry.values())]
    return found["global_step"], found["lr_schedulers"][0]["_last_lr"], [tensor.tolist() for tensor in tensors]


def weights(folder):
    files = sorted((folder / "checkpoints" / "latest").resolve().glob("*.safetensors"))
    return {file.name: file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """Return a function that returns the folder of a run that went through, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("whole")

    def of(name, ranks):
        found = folder / f"{name}.{ranks}"
        if not found.exists():
            run(name, ranks, found)
        return found

    return of


@pytest.mark.parametrize("ranks", RANKS)
def test_lightning_killed_in_mid_epoch_goes_on_from_the_end_of_the_last_one(ranks, tmp_path, whole_run):
    whole, broken = whole_run("under_lightning", ranks), tmp_path / "broken"
    run("under_lightning", ranks, broken, "--pause", "0.1", until=lambda _, out: saved_step(out) > 0, act=kill)
    run("under_lightning", ranks, broken)
    assert state(broken) == state(whole)
    assert status(broken)["state"] == "done"


@pytest.mark.parametrize("ranks", RANKS)
def test_lightning_is_stopped_in_mid_epoch_by_a_signal_to_one_rank(ranks, tmp_path, whole_run):
    whole, stopped = whole_run("under_lightning", ranks), tmp_path / "stopped"
    said = run(
        *("under_lightning", ranks, stopped, "--pause", "0.1"),
        until=lambda _, out: saved_step(out) > 0,
        act=ask_last_rank(signal.SIGUSR1, ranks),
        code=75 if ranks == 1 else 0,
    )
    step = status(stopped)["step"]
    assert (verdict(stopped), saved_step(stopped)) == (f"out-of-time {step} time-limit\n", step)
    assert re.search(rf"\bstopped \(time-limit\).* {step}\b", said)
    assert "fitted" not in said
    run("under_lightning", ranks, stopped)
    assert verdict(stopped, 2) == f"done {saved_step(whole)} complete\n"
    assert state(stopped) == state(whole)
    for rank in range(ranks):
        assert seen(stopped, rank) == seen(whole, rank)


def test_fabric_ends_as_a_run_that_went_through(tmp_path):
    run("with_fabric", 2, tmp_path / "whole")
    run("with_fabric", 2, tmp_path / "broken", until=lambda _, out: saved_step(out) > 0, act=kill)
    said = run("with_fabric", 2, tmp_path / "broken")
    assert weights(tmp_path / "broken") == weights(tmp_path / "whole")
    assert status(tmp_path / "broken")["state"] == "done"
    assert slugs(said) == []


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("end", ["killed", pytest.param("stopped", marks=pytest.mark.prove)])
def test_accelerate_ends_as_a_run_that_went_through(end, ranks, tmp_path, whole_run):
    whole, broken = whole_run("with_accelerate", ranks), tmp_path / "broken"
    if end == "killed":
        run("with_accelerate", ranks, broken, until=lambda _, out: saved_step(out) > 0, act=kill)
    else:
        act = ask_last_rank(signal.SIGTERM, ranks)
        run(
            *("with_accelerate", ranks, broken),
            until=lambda launch, _: "run folder" in launch.output,
            act=act,
            code=75 if ranks == 1 else 0,
        )
        assert status(broken)["reason"] == "signal"
    run("with_accelerate", ranks, broken)
    assert weights(broken) == weights(whole)
    assert records(broken) == records(whole)
    assert status(broken)["state"] == "done"
