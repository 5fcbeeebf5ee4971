"""A run that was killed and resumed ends with exactly the bytes of the uninterrupted run."""

import json
import re
from pathlib import Path

import pytest

from support import DIGITS, ROOT, digest, last_step, launch_words, output_of, train, training
from trainer.data.make import write_aerial

EPOCHS = 8
FLAGS = ["--epochs", str(EPOCHS), "--checkpoint-interval", "5", "--keep", "100", "--log-interval", "1", "--no-figures"]
STEPS_PER_EPOCH = 23
WORLDS = [("single", 1), ("forked", 2), pytest.param("spawn", 4, marks=pytest.mark.prove)]


@pytest.mark.core
@pytest.mark.parametrize("arch", [pytest.param("mlp", marks=pytest.mark.prove), "mnist-cnn"])
@pytest.mark.parametrize(("launcher", "ranks"), WORLDS)
def test_run_killed_twice_matches_uninterrupted_run_bitwise(launcher, ranks, arch, tmp_path, table):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    flags = [*FLAGS, "--arch", arch]
    train(launcher, ranks, whole, *flags)
    killed = []
    for step in (31, 100):
        with training(launcher, ranks, broken, *flags, "--resume", "auto") as launch:
            launch.until(lambda step=step: last_step(broken) >= step, f"step {step}")
            mapped = Path(f"/proc/{launch.rank_pid(0)}/maps").read_text() if ranks > 1 else ""
            assert "/checkpoints/" not in mapped  # files of the resumed checkpoint
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


@pytest.mark.parametrize(
    ("launcher", "ranks"), [("single", 1), ("forked", 2), pytest.param("forked", 4, marks=pytest.mark.prove)]
)
@pytest.mark.parametrize("workers", [None, 0, 1, pytest.param(4, marks=pytest.mark.prove)])
def test_way_of_reading_does_not_change_result(launcher, ranks, workers, tmp_path):
    """A run from batches in their place, continued with batches read ahead: by a thread, or by workers."""
    whole, resumed, images = tmp_path / "whole", tmp_path / "resumed", tmp_path / "images"
    flags = ["--arch", "mlp", "--max-steps", "8", "--batch-size", "16", "--checkpoint-interval", "3", "--no-figures"]
    if workers is None:
        flags += ["--crop-padding", "1", "--flip"]
    else:
        write_aerial(images, per_class=8, image_size=16, seed=0)
        flags += ["--dataset", "imagefolder", "--data-dir", str(images), "--image-size", "16", "--resized-crop"]
    train(launcher, ranks, whole, *flags)
    flags += ["--workers", str(workers or 0), "--resume", str(whole / "checkpoints" / "step_00000003")]
    words = launch_words(launcher, ranks, program=[str(ROOT / "tests" / "read_ahead.py"), "2", "--backend"])
    output_of([*words, str(DIGITS), "--output-dir", str(resumed), *flags], tmp_path / "log", imports=True)
    assert digest(resumed / "checkpoints" / "latest") == digest(whole / "checkpoints" / "latest")


@pytest.mark.parametrize(
    ("flags", "amp", "channels_last"),
    [(["--amp", "none", "--no-channels-last"], "none", False), (["--amp", "bf16", "--channels-last"], "bf16", True)],
    ids=["float32", "bf16"],
)
def test_resumed_run_keeps_auto_settings_of_first_attempt(flags, amp, channels_last, tmp_path):
    """Independent of this machine's choice for a new run: one of the two differs from it."""
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


@pytest.mark.horovod
def test_ddp_checkpoint_resumes_under_single_and_horovod(tmp_path, table):
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


def test_resumed_run_reports_changed_settings_once(tmp_path):
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
