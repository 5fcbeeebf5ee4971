"""``python bench/trainer_versions.py OTHER``: compare this trainer with that of another checkout, the folder OTHER.

It prints start-up time, time per step, and time per step with checkpoints, each as a ratio of this version to the
other. The two take turns, so that other load affects both alike; medians are compared. The Python that runs this must
have the packages that both versions import.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
ROUNDS = 7
STEPS = 3000
CHECKPOINTS = 30
SMALL = ("--arch", "mlp", "--batch-size", "16", "--log-interval", "100")
LARGE = (
    *("--dataset", "synthetic", "--synthetic-shape", "3", "64", "64", "--synthetic-samples", "480"),
    *("--synthetic-classes", "10", "--arch", "mlp", "--batch-size", "16", "--log-interval", "10"),
)
"""A model with checkpoints of about 100 MB; AdamW's state is twice as large as the model."""


def run(checkout: Path, *flags: str) -> tuple[float, float, int]:
    """Train, and return the seconds of the process, the seconds of training, and the number of steps."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        words = ("-m", "trainer", "--output-dir", folder, "--no-figures", "--device", "cpu", "--threads", "1")
        types = ("--amp", "none", "--no-channels-last")  # the only defaults of earlier versions
        before = time.perf_counter()
        subprocess.run(
            [sys.executable, *words, *types, *flags],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(checkout / "src"), "PYTHONDONTWRITEBYTECODE": ""},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - before
        records = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    first, last = (next(filter(_of_training, order)) for order in (records, reversed(records)))
    return seconds, last["elapsed"] - first["elapsed"], last["step"] - first["step"]


def _of_training(record: dict) -> bool:
    return record["kind"] == "train"


def start_up(checkout: Path) -> float:
    """Return the total seconds of a run of one step."""
    return run(checkout, *SMALL, "--log-interval", "1", "--max-steps", "1")[0]


def step(checkout: Path) -> float:
    """Return the seconds per step."""
    _, seconds, steps = run(checkout, *SMALL, "--max-steps", str(STEPS), "--epochs", "1000")
    return seconds / steps


def checkpoint_stall(checkout: Path) -> float:
    """Return the seconds per step if every third step saves a checkpoint."""
    steps = 3 * CHECKPOINTS
    _, seconds, steps = run(checkout, *LARGE, "--max-steps", str(steps), "--epochs", "9", "--checkpoint-interval", "3")
    return seconds / steps


def main() -> int:
    """Print a row for each measurement."""
    other = Path(sys.argv[1]).resolve()
    print(f"medians of {ROUNDS} interleaved runs; the ratio of each pair of runs, its median and quartiles")
    for measure in (start_up, step, checkpoint_stall):
        pairs = []
        for number in range(ROUNDS + 1):
            pair = measure(HERE), measure(other)
            if number:  # the first round fills the caches
                pairs.append(pair)
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        low, middle, high = statistics.quantiles([mine / its for mine, its in pairs], n=4)
        row = f"this {1000 * ours:9.3f} ms   other {1000 * theirs:9.3f} ms"
        print(f"{measure.__name__:17} {row}   ratio {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
