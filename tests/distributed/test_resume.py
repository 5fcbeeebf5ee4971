"""A run that was killed and resumed ends with the very bytes of the run that was not."""

import json
import os
import re
from pathlib import Path

import pytest

from support import DIGITS, digest, last_step, launch_words, started, train

EPOCHS = 8
FLAGS = ["--epochs", str(EPOCHS), "--checkpoint-interval", "5", "--keep", "100", "--log-interval", "1", "--no-figures"]
STEPS_PER_EPOCH = 23
WORLDS = [("single", 1), ("forked", 2), pytest.param("spawn", 4, marks=pytest.mark.prove)]


@pytest.mark.core
@pytest.mark.parametrize("arch", [pytest.param("mlp", marks=pytest.mark.prove), "mnist-cnn"])
@pytest.mark.parametrize(("launcher", "ranks"), WORLDS)
def test_killed_twice_and_resumed_is_bitwise_the_uninterrupted_run(launcher, ranks, arch, tmp_path, table):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    flags = [*FLAGS, "--arch", arch]
    train(launcher, ranks, whole, *flags)
    words = [*launch_words(launcher, ranks), str(DIGITS), "--output-dir", str(broken), *flags, "--resume", "auto"]
    killed = []
    for attempt, step in enumerate([31, 100]):
        with started(words, tmp_path / f"{attempt}.log") as launch:
            launch.until(lambda step=step: last_step(broken) >= step, f"step {step}")
            mapped = Path(f"/proc/{launch.rank_pid(0)}/maps").read_text() if ranks > 1 else ""
            assert "/checkpoints/" not in mapped  # files of the checkpoint that was resumed
            launch.kill()
        killed.append(last_step(broken))
    assert killed[1] < EPOCHS * STEPS_PER_EPOCH
    train(launcher, ranks, broken, *flags, "--resume", "auto")

    compared = sorted(path.name for path in (whole / "checkpoints").glob("step_*"))
    assert len(compared) == EPOCHS * STEPS_PER_EPOCH // 5 + EPOCHS - EPOCHS // 5, "each 5th and each epoch's last"
    for name in compared:
        for file in ("model.safetensors", "optimizer.safetensors"):
            first, second = ((run / "checkpoints" / name / file).read_bytes() for run in (whole, broken))
            assert first == second, f"{file} differs at {name}"
    both = [digest(run / "checkpoints" / "latest") for run in (whole, broken)]
    assert both[0] == both[1]
    table(
        f"resume: {arch}, {launcher} x {ranks}",
        [(f"killed after steps {killed}", f"{len(compared)} checkpoints equal", f"sha256 {both[0][:16]}...")],
    )


MILLION = """
[data]
dataset = "million:pixels"
crop_padding = 1
[model]
arch = "million:net"
[train]
epochs = 1
batch_size = 100000
val_batch_size = 1000
[run]
log_interval = 1
checkpoint_interval = 2
figures = false
"""
BEFORE = """
import runpy
import slipway.permutation
slipway.permutation.LARGE = 1 << 60
runpy.run_module("trainer", run_name="__main__", alter_sys=True)
"""
"""Runs a trainer that draws whole orders only, as it did once."""


@pytest.mark.parametrize(("program", "version"), [(("-m", "trainer"), 3), (("-c", BEFORE), 2)], ids=["now", "before"])
def test_more_than_a_million_samples_are_resumed_bitwise(program, version, tmp_path, table):
    config = tmp_path / "million.toml"
    config.write_text(MILLION)
    here = {"PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    words = [*launch_words("single", 1, program=(*program, "--backend")), str(config), "--output-dir"]
    with started([*words, str(whole)], tmp_path / "whole.log", imports=True, **here) as launch:
        assert launch.wait() == 0, launch.output
    with started([*words, str(broken)], tmp_path / "broken.log", imports=True, **here) as launch:
        launch.until(lambda: last_step(broken) >= 5, "step 5")
        launch.kill()
    killed = last_step(broken)
    assert 5 <= killed < 11
    train("single", 1, broken, "--resume", "auto", config=config, **here)
    manifests = [json.loads((run / "checkpoints" / "latest" / "manifest.json").read_text()) for run in (whole, broken)]
    assert [manifest["facts"]["sampler_version"] for manifest in manifests] == [version] * 2
    both = [digest(run / "checkpoints" / "latest") for run in (whole, broken)]
    assert both[0] == both[1]
    rows = [(f"killed after step {killed} of 11", f"sha256 {both[0][:16]}...")]
    table(f"resume: 1,053,576 samples, order {version}", rows)


@pytest.mark.parametrize(
    ("flags", "amp", "channels_last"),
    [(["--amp", "none", "--no-channels-last"], "none", False), (["--amp", "bf16", "--channels-last"], "bf16", True)],
    ids=["float32", "bf16"],
)
def test_auto_goes_on_as_the_run_began(flags, amp, channels_last, tmp_path):
    """Whatever the hardware of this machine would decide for a new run: one of the two is something else here."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    common = [*FLAGS, "--max-steps", "20"]
    train("forked", 2, whole, *common, *flags)
    said = train("forked", 2, resumed, *common, "--resume", str(whole / "checkpoints" / "step_00000010"))
    layout = str(channels_last).lower()
    assert re.search(rf"(?m)^auto: train\.amp {amp}, model\.channels_last {layout}, .*\bcheckpoint\b", said)
    assert "train.amp was" not in said
    decided = json.loads((resumed / "run.json").read_text())["auto"]
    assert decided == {"train.amp": amp, "model.channels_last": channels_last, "data.decoder": "pil"}
    assert (resumed / "config.toml").read_text().count('= "auto"') == 3
    assert digest(resumed / "checkpoints" / "latest") == digest(whole / "checkpoints" / "latest")
    said = train("forked", 2, resumed, *common, "--max-steps", "21", "--amp", "fp16", "--resume", "auto")
    assert f"train.amp was '{amp}' and is 'fp16'" in said
    assert re.search(rf"(?m)^auto: model\.channels_last {layout}, .*\bcheckpoint\b", said)


def test_metrics_of_a_resumed_run_hold_each_step_once(tmp_path):
    out = tmp_path / "run"
    train("single", 1, out, *FLAGS, "--max-steps", "40")
    train("single", 1, out, *FLAGS, "--max-steps", "60", "--resume", "auto")
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "train"] == list(range(1, 61))


@pytest.mark.horovod
def test_a_checkpoint_of_two_ddp_ranks_goes_on_under_other_backends(tmp_path, table):
    """The samples of the epoch are still seen exactly once, by the ids that each rank recorded."""
    flags = ["--epochs", "1", "--record-samples", "--no-figures"]
    begun = tmp_path / "ddp"
    train("forked", 2, begun, *flags, "--max-steps", "10")
    first = recorded_ids(begun)
    assert len(first) == 640
    rows = []
    for launcher, ranks in [("single", 1), ("horovodrun", 2)]:
        out = tmp_path / launcher
        said = train(launcher, ranks, out, *flags, "--resume", str(begun))
        second = recorded_ids(out)
        assert "resumed at step 10, in epoch 1" in said
        assert sorted(first + second) == list(range(1438))
        rows.append((f"ddp x 2, then {launcher} x {ranks}", f"{len(first)} + {len(second)} ids, each of 1438 once"))
    table("one epoch over two backends", rows)


def recorded_ids(out):
    files = (out / "logs").glob("samples.rank*.jsonl")
    return [sample for file in files for line in file.read_text().splitlines() for sample in json.loads(line)["ids"]]


def test_what_differs_from_before_is_said_on_resume(tmp_path):
    flags = ["--arch", "mlp", "--no-figures", "--resume", "auto"]
    train("single", 1, tmp_path / "run", *flags, "--epochs", "1")
    said = train("spawn", 2, tmp_path / "run", *flags, "--epochs", "2", "--lr", "0.0005", "--batch-size-per-rank", "16")
    (line,) = [line for line in said.splitlines() if "optim.lr" in line]
    assert [
        re.findall(r"[a-z_.]*ranks?\b|[a-z]+\.[a-z_]+|'[^']*'|\d[\d.]*", change) for change in line.split("; ")
    ] == [
        ["ranks", "1", "2"],
        ["optim.lr", "0.003", "0.0005"],
        ["train.epochs", "1", "2"],
        ["train.batch_size", "64", "'not set'"],
        ["train.batch_size_per_rank", "'not set'", "16"],
    ]
    said = train("spawn", 2, tmp_path / "run", *flags, "--epochs", "2", "--lr", "0.0005", "--batch-size-per-rank", "16")
    assert "optim.lr" not in said
    assert "resumed at step" in said
