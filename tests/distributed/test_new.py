"""`jobgen new`: each script, stopped in the middle and continued, ends with the bytes of an uninterrupted run."""

import os
import signal
import time

import pytest

from jobgen.new import FRAMEWORKS, create
from messages import slugs
from session_runs import content, saved_step
from support import launch_words, started, status, verdict

PRELOAD = {
    "lightning": ["lightning.pytorch"],
    "accelerate": ["accelerate"],
    "transformers": ["transformers.models.bert.modeling_bert"],
}
EPOCHS = 3
CASES = [*((framework, 2) for framework in FRAMEWORKS), pytest.param("ddp", 3, marks=pytest.mark.prove)]
WARNED = {"lightning": ["slow-resume"]}
"""Slugs of the attempt that continues."""


def attempt(script, ranks, folder):
    """Start an attempt whose epochs take a second or more each."""
    flags = ["--epochs", str(EPOCHS), "--batch-size", "16" if script.parent.name == "transformers" else "4"]
    words = [*launch_words("forked", ranks, program=[str(script)])[:-1], *flags]
    log = folder.with_name(f"{folder.name}.{time.monotonic_ns()}.log")
    return started(words, log, preload=PRELOAD.get(script.parent.name, ()), RUN_DIR=str(folder))


def finish(script, ranks, folder):
    with attempt(script, ranks, folder) as launch:
        assert launch.wait() == 0, launch.output
    assert status(folder)["state"] == "done"
    return launch.output


@pytest.mark.parametrize(("framework", "ranks"), CASES)
def test_created_script_continues_exactly_after_a_signal(framework, ranks, tmp_path):
    create(str(tmp_path / framework), framework)
    script, whole, stopped = tmp_path / framework / "train.py", tmp_path / "whole", tmp_path / "stopped"
    said = finish(script, ranks, whole)
    assert "warm_up" not in said
    assert slugs(said) == []
    assert float(said.rpartition("accuracy ")[2].split()[0]) > 0.9
    with attempt(script, ranks, stopped) as launch:
        launch.until(lambda: saved_step(stopped) > 0, "checkpoint")
        time.sleep(0.5)  # into the next epoch
        os.kill(launch.rank_pids(ranks - 1)[0], signal.SIGTERM)  # the other one is its worker
        assert launch.wait() == 0, launch.output
    assert verdict(stopped).startswith("stopped ")
    assert slugs(launch.output) == []
    step, last = saved_step(stopped), saved_step(whole)
    assert 0 < step < last
    assert step % (last // EPOCHS) > 0
    assert slugs(finish(script, ranks, stopped)) == WARNED.get(framework, [])
    assert content(stopped) == content(whole)


@pytest.mark.prove
def test_missing_warm_up_is_reported(tmp_path):
    """Three ranks or more then resume with rounding errors."""
    create(str(tmp_path / "mine"), "ddp")
    script = tmp_path / "mine" / "train.py"
    lines = [line for line in script.read_text().splitlines() if "session.warm_up" not in line]
    script.write_text("\n".join(lines))
    assert "warm_up" in finish(script, 3, tmp_path / "run")
