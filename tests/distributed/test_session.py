"""Scripts with a session: killed anywhere and resumed, they end with the bytes of a run that was not."""

import json
import os
import random
import signal
import sys
import time

import pytest

from support import INSIDE, ROOT, launch_words, started

SCRIPTS = ROOT / "tests" / "scripts" / "session"
TIMES = ("elapsed", "steps_per_second")
FEW, MANY = 2, 10
"""Kills of a run: in `make test`, and in `make prove`."""
RUNS = [
    ("mnist", 1, ["--epochs", "6"]),
    ("classifier", 1, ["--workers", "2", "--persistent", "--accumulate", "2"]),
    ("classifier", 2, ["--workers", "1"]),
    ("classifier", 4, ["--accumulate", "3"]),
    ("characters", 1, []),
    ("characters", 2, []),
    ("gan", 1, ["--workers", "2", "--epochs", "5"]),
    ("gan", 2, ["--epochs", "5"]),
]


def words(name, ranks, *flags):
    script = str(SCRIPTS / f"{name}.py")
    if ranks == 1:
        return [*INSIDE, "python" if INSIDE else sys.executable, script, *flags]
    return [*launch_words("torchrun", ranks, program=[script])[:-1], *flags]


def finish(name, ranks, flags, folder, *, code=0):
    log = folder.with_name(f"{folder.name}.{time.monotonic_ns()}.log")
    with started(words(name, ranks, *flags), log, RUN_DIR=str(folder)) as launch:
        assert launch.wait() == code, launch.output
    return launch.output


def content(folder):
    """Return all that a run has come to, but the times: tensors and trees of its last checkpoint, and its records."""
    checkpoint = folder / "checkpoints" / "latest"
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["position"].pop("elapsed")
    tensors = {file.name: file.read_bytes() for file in checkpoint.glob("*.safetensors")}
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "tensors": tensors,
        "manifest": {key: manifest[key] for key in ("position", "metric", "facts", "trees")},
        "records": [{key: value for key, value in record.items() if key not in TIMES} for record in records],
    }


def saved_step(folder):
    try:
        return int((folder / "checkpoints" / "latest").resolve().name.removeprefix("step_"))
    except ValueError:
        return 0


def kill(launch, ranks, draw):
    """Kill one rank, of which the launcher ends the others, or all at once."""
    if ranks > 1 and draw.random() < 0.5:
        victim = launch.rank_pid(draw.randrange(ranks))
        os.kill(victim, signal.SIGKILL)
        launch.wait()
    else:
        launch.kill()


@pytest.mark.parametrize(
    ("name", "ranks", "flags"), RUNS, ids=lambda value: "".join(value) if isinstance(value, list) else None
)
@pytest.mark.parametrize("kills", [FEW, pytest.param(MANY, marks=[pytest.mark.prove, pytest.mark.timeout(1200)])])
def test_a_run_that_is_killed_ends_as_one_that_is_not(name, ranks, flags, kills, tmp_path):
    draw = random.Random(f"{name} {ranks} {kills}")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(name, ranks, flags, whole)
    expected = content(whole)
    last = saved_step(whole)
    for number in range(kills):
        step = draw.randrange(last * 3 // 4)
        with started(words(name, ranks, *flags), tmp_path / f"kill{number}.log", RUN_DIR=str(broken)) as launch:
            if saved_step(broken) <= step:
                launch.until(lambda step=step: saved_step(broken) > step, f"step {step}")
            else:
                launch.until(lambda: "resumed" in launch.output, "resumption")
            time.sleep(draw.random() / 4)
            if launch.process.poll() is None:
                kill(launch, ranks, draw)
            launch.kill()
    finish(name, ranks, flags, broken)
    assert content(broken) == expected
