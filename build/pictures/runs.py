"""Pictures of real runs: the curves of `make train`, the schedule of a split model, and the HTML report."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SPLIT = """
    --dataset synthetic --arch resnet18 --split layer2,layer4 --batch-size 128 --grad-accum-steps 8
    --synthetic-shape 3 64 64 --synthetic-samples 1280 --max-steps 4
"""
"""Flags of the run in docs/howto/split.md: three stages, eight micro-batches."""


def trainer(*words: str) -> None:
    """Run the trainer, on CPUs and in the checkout."""
    subprocess.run([sys.executable, "-m", "trainer", *words], cwd=ROOT, check=True)


def curves(path: Path) -> None:
    """Train the digits example on two ranks, as `make train` does, and keep its curves."""
    with tempfile.TemporaryDirectory() as run:
        trainer("configs/digits.toml", "--nproc-per-node", "2", "--device", "cpu", "--output-dir", run)
        shutil.copy(f"{run}/figures/curves.png", path)


def schedule(path: Path) -> None:
    """Draw the schedule of three stages and eight micro-batches."""
    with tempfile.TemporaryDirectory() as run:
        trainer(*SPLIT.split(), "--device", "cpu", "--output-dir", run)
        shutil.copy(f"{run}/figures/schedule.png", path)


def report(path: Path) -> None:
    """Take a screenshot of the report about a run of two attempts."""
    with tempfile.TemporaryDirectory() as folder:
        run, page = f"{folder}/digits", Path(folder, "report.html")
        words = ("configs/digits.toml", "--nproc-per-node", "2", "--device", "cpu", "--output-dir", run)
        trainer(*words, "--max-steps", "400")
        trainer(*words, "--resume", "auto")
        trainer("report", run, "--output", str(page))
        size = ("--window-size=1000,1150", "--virtual-time-budget=4000")
        browser = ROOT / "build" / "browser"
        subprocess.run([browser, *size, f"--screenshot={path}", page.as_uri()], check=True, capture_output=True)
