"""A run that SIGKILL ends and that is resumed: with deterministic operations it ends with the bytes of one that is not.

Without them cuDNN may sum in another order in each run; what is left then is recorded, not required.
"""

import json
import sys
from pathlib import Path

import pytest
import torch

from support import started, weights

HERE = Path(__file__).parent
GPU = torch.cuda.is_available()
BATCH = 8 if GPU else 2
SYNTHETIC = ["--dataset", "synthetic", "--synthetic-classes", "10"]
SYNTHETIC += ["--synthetic-samples", str(4 * BATCH), "--batch-size", str(BATCH)]
"""Four steps an epoch, so that a run draws the orders of several epochs, and evaluates between them."""
SMALL = ["--synthetic-shape", "3", "64", "64"]
MODELS = {
    "mnist-cnn": ["--dataset", "digits", "--arch", "mnist-cnn", "--optimizer", "adadelta"],
    "resnet18": [*SYNTHETIC, *SMALL, "--arch", "resnet18", "--optimizer", "sgd"],
    "mobilenet_v3_small": [*SYNTHETIC, *SMALL, "--arch", "mobilenet_v3_small", "--ema-decay", "0.9"],
    "swin_t": [*SYNTHETIC, *SMALL, "--arch", "swin_t", "--optimizer", "sgd", "--clip-grad", "1"],
}
NONDETERMINISTIC = ["mnist-cnn", "resnet18"] if GPU else ["mnist-cnn"]
DETERMINISTIC = list(MODELS) if GPU else [name for name in MODELS if name not in NONDETERMINISTIC]
"""A CPU sums in the same order either way, so there each model is run once."""
COMMON = ["--max-steps", "12", "--checkpoint-interval", "4", "--keep", "9", "--no-figures", "--resume", "auto"]


def run(out: Path, program: list[str], *, killed_after: int, deterministic: bool) -> None:
    environment = {
        "RUN_DIR": str(out),
        "KILL_AFTER": str(killed_after),
        "DETERMINISTIC": str(int(deterministic)),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # which torch asks for with deterministic algorithms
    }
    words = [sys.executable, str(HERE / "killed.py"), *program]
    with started(words, out.with_suffix(f".{killed_after}.log"), **environment) as launch:
        code = launch.wait()
    assert code == (137 if killed_after else 0), launch.output


def both(tmp_path: Path, program: list[str], *, killed_after: int, deterministic: bool = True) -> list[Path]:
    """Run a program twice, once without a break; return the last checkpoint of each."""
    found = []
    for name, kills in {"whole": [0], "broken": [killed_after, 0]}.items():
        out = tmp_path / name
        for kill in kills:
            words = [*program, "--output-dir", str(out)] if program[0] == "trainer" else program
            run(out, words, killed_after=kill, deterministic=deterministic)
        found.append((out / "checkpoints" / "latest").resolve())
    assert found[0].name == found[1].name
    return found


def differing(first: Path, second: Path) -> list[str]:
    names = sorted(path.name for path in first.glob("*.safetensors"))
    assert "model.safetensors" in names or len(names) > 1
    return [name for name in names if (first / name).read_bytes() != (second / name).read_bytes()]


def trees(checkpoint: Path) -> dict:
    """Return the parts of a checkpoint's state that are no tensors: of a scheduler, of a loss scaler."""
    return json.loads((checkpoint / "manifest.json").read_text())["trees"]


@pytest.mark.parametrize("model", DETERMINISTIC)
def test_resume_with_deterministic_operations_is_bitwise(model, tmp_path, device, record):
    whole, broken = both(tmp_path, ["trainer", *MODELS[model], *COMMON, "--device", device], killed_after=6)
    record(files=len([*whole.glob("*.safetensors")]))
    assert differing(whole, broken) == []


@pytest.mark.parametrize("model", NONDETERMINISTIC)
def test_resume_with_default_operations_is_within_tolerance(model, tmp_path, device, record):
    program = ["trainer", *MODELS[model], *COMMON, "--device", device]
    whole, broken = both(tmp_path, program, killed_after=6, deterministic=False)
    pairs = zip(weights(whole).items(), weights(broken).values(), strict=True)
    largest = max(float((one.double() - two.double()).abs().max()) for (_, one), two in pairs)
    record(equal=not differing(whole, broken), largest_difference=largest)
    assert largest < 1e-2
    if device == "cpu":
        assert differing(whole, broken) == []


def test_resume_keeps_fp16_loss_scale(tmp_path, device, record):
    flags = ["--dataset", "digits", "--arch", "mnist-cnn", "--optimizer", "sgd", "--amp", "fp16", "--device", device]
    whole, broken = both(tmp_path, ["trainer", *flags, *COMMON], killed_after=6)
    record(scale=dict(trees(whole)["scaler"]["dict"])["scale"])
    assert trees(whole)["scaler"] == trees(broken)["scaler"]
    assert differing(whole, broken) == []


@pytest.mark.parametrize("script", sorted(path.stem for path in (HERE / "scripts").glob("*.py")))
def test_killed_session_script_resumes_bitwise(script, tmp_path, device, record):
    whole, broken = both(tmp_path, [str(HERE / "scripts" / f"{script}.py"), "--device", device], killed_after=17)
    record(files=len([*whole.glob("*.safetensors")]))
    assert trees(whole) == trees(broken)
    assert differing(whole, broken) == []
