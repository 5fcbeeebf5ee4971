"""On a stop request all ranks save at the same step and end cleanly; --resume auto finishes the run."""

import itertools
import json
import os
import signal
import time

import pytest

from support import digest, last_step, status, train, training, verdict
from trainer.data.make import write_aerial

LONG = ["--epochs", "100000", "--schedule", "constant", "--log-interval", "1", "--no-figures"]
# A model with a 100 MB checkpoint, which takes long enough to send a signal during the write.
SLOW_SAVE = [
    *("--dataset", "synthetic", "--synthetic-shape", "3", "64", "64", "--synthetic-samples", "64"),
    *("--synthetic-classes", "10", "--arch", "mlp", "--batch-size", "16", "--checkpoint-interval", "2"),
]
LAUNCHERS = {"torchrun": 0, "spawn": 75, "horovodrun": 0, "mpirun": 0}
"""Each launcher and its exit code after a planned stop: only spawn passes 75 through."""


def ask(launch, out, how):
    match how:
        case "STOP user":
            (out / "STOP").write_text("user\n")
        case "STOP time-limit":
            (out / "STOP").write_text("time-limit\n")
        case "SIGTERM":
            os.kill(launch.rank_pid(1), signal.SIGTERM)
        case "SIGUSR1":
            os.kill(launch.rank_pid(1), signal.SIGUSR1)
        case "SIGUSR1 twice in a save":
            launch.until(lambda: list((out / "checkpoints").glob(".step_*")), "a save")
            for _ in range(2):
                os.kill(launch.rank_pid(0), signal.SIGUSR1)


EXPECTED = {
    "STOP user": ("user", False),
    "STOP time-limit": ("time-limit", True),
    "SIGTERM": ("signal", False),
    "SIGUSR1": ("time-limit", True),
    "SIGUSR1 twice in a save": ("time-limit", True),
}


EACH_ONCE = {
    ("torchrun", "SIGUSR1 twice in a save"),
    ("torchrun", "STOP user"),
    ("spawn", "STOP time-limit"),
    ("spawn", "SIGTERM"),
    ("horovodrun", "SIGUSR1"),
    ("mpirun", "SIGTERM"),
}
"""Pairs that cover each launcher and each way to stop it; `make prove` runs all pairs."""
CORE = ("torchrun", "STOP user")


def cases():
    for case in itertools.product(LAUNCHERS, EXPECTED):
        marks = [] if case in EACH_ONCE else [pytest.mark.prove]
        yield pytest.param(*case, marks=[pytest.mark.core] if case == CORE else marks)


@pytest.mark.horovod
@pytest.mark.parametrize(("launcher", "how"), list(cases()))
def test_all_ranks_save_on_stop_and_run_resumes(launcher, how, tmp_path, table):
    out = tmp_path / "run"
    flags = [*LONG, *(SLOW_SAVE if "save" in how else [])]
    with training(launcher, 2, out, *flags) as launch:
        launch.until(lambda: last_step(out) >= 10, "step 10")
        ask(launch, out, how)
        code = launch.wait()
    stopped = status(out)
    reason, requeue = EXPECTED[how]
    assert code == LAUNCHERS[launcher], launch.output
    assert (stopped["state"], stopped["reason"], stopped["requeue"]) == ("stopped", reason, requeue)
    assert stopped["step"] >= 10
    assert verdict(out) == f"{'out-of-time' if requeue else 'stopped'} {stopped['step']} {reason}\n"
    assert (out / "checkpoints" / "latest").resolve().name == f"step_{stopped['step']:08d}"

    further = stopped["step"] + 3
    said = train(launcher, 2, out, *flags, "--resume", "auto", "--max-steps", str(further))
    assert f"resumed at step {stopped['step']}" in said
    assert not (out / "STOP").exists(), "it has been obeyed"
    done = status(out)
    assert (done["attempt"], done["state"], done["step"]) == (2, "done", further)
    assert verdict(out, 2) == f"done {further} complete\n"
    row = (launcher, how, f"exit {code}", f"step {stopped['step']}", reason, f"requeue {requeue}", "resumed, done")
    table("stopping", [row])


@pytest.mark.parametrize(("launcher", "ranks", "code"), [("single", 1, 75), ("forked", 2, 0)])
def test_run_with_loader_workers_exits_when_stopped_and_when_done(tmp_path, launcher, ranks, code):
    """The workers ignore SIGTERM, with which Python's exit ends workers, so it would wait for them forever."""
    folder, out = tmp_path / "images", tmp_path / "run"
    write_aerial(folder, per_class=5, image_size=16, seed=0)
    flags = ["--dataset", "imagefolder", "--data-dir", str(folder), "--image-size", "16", "--workers", "2"]
    flags += ["--arch", "mlp", "--no-figures", "--epochs", "400", "--log-interval", "1"]
    with training(launcher, ranks, out, *flags) as launch:
        launch.until(lambda: last_step(out) >= 3, "step 3")
        (out / "STOP").write_text("user\n")
        assert launch.wait() == code
    further = str(status(out)["step"] + 3)
    train(launcher, ranks, out, *flags, "--resume", "auto", "--max-steps", further)
    assert status(out)["state"] == "done"


def test_evaluation_is_abandoned_on_signal_and_repeated_on_resume(tmp_path, table):
    flags = ["--arch", "resnet18", "--val-fraction", "0.6", "--val-batch-size", "1", "--epochs", "1"]
    flags += ["--log-interval", "1", "--no-figures", "--resume", "auto"]
    whole, out = tmp_path / "whole", tmp_path / "run"
    train("spawn", 2, whole, *flags)
    last = json.loads((whole / "metrics.jsonl").read_text().splitlines()[-1])
    with training("spawn", 2, out, *flags) as launch:
        launch.until(lambda: last_step(out) == last["step"], "the last step")
        time.sleep(0.2 * last["evaluation_seconds"])
        began = time.monotonic()
        launch.process.terminate()
        assert launch.wait() == 75
        seconds = time.monotonic() - began
    assert status(out)["step"] == last["step"]
    assert '"validation"' not in (out / "metrics.jsonl").read_text(), "it was under way"
    train("spawn", 2, out, *flags)
    again = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    assert {**again, "elapsed": 0, "evaluation_seconds": 0} == {**last, "elapsed": 0, "evaluation_seconds": 0}
    assert digest(out / "checkpoints" / "latest") == digest(whole / "checkpoints" / "latest")
    table("SIGTERM within an evaluation", [(f"of {last['evaluation_seconds']:.1f} s", f"ended after {seconds:.1f} s")])
