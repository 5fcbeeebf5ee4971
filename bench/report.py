"""``python bench/report.py [--runs N] [--records N]``: measure ``trainer report`` for many runs.

It prints the CPU time, the memory, and the size of the page.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Create the runs and their report in a temporary folder, and print the costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--records", type=int, default=10_000, help="records of each run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder, f"run-{number:03}") for number in range(arguments.runs)]
        for number, run in enumerate(runs):
            run.mkdir()
            records = (json.dumps(_record(step, number)) for step in range(1, arguments.records + 1))
            (run / "metrics.jsonl").write_text("\n".join(records) + "\n", encoding="utf-8")
        page = Path(folder, "report.html")
        words = [sys.executable, "-m", "trainer", "report", *map(str, runs), "--output", str(page)]
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        assert status == 0
        cores = used.ru_utime + used.ru_stime
        print(f"{arguments.runs} runs of {arguments.records} records: ", end="")
        print(f"{cores:.1f} s of CPU, {used.ru_maxrss / 1000:.0f} MB, a page of {page.stat().st_size / 1e6:.1f} MB")


def _record(step: int, seed: int) -> dict[str, object]:
    """Return a record like the trainer's; every tenth is a validation record."""
    loss = 2.3 * math.exp(-step / 3000) + 0.1 * math.sin(step * (seed + 1)) ** 2
    place = {"step": 50 * step, "epoch": step / 100, "elapsed": 2.5 * step}
    if step % 10 == 0:
        return {"kind": "validation", **place, "loss": loss, "accuracy": 1 / (1 + loss), "top5": 1.0}
    return {"kind": "train", **place, "loss": loss, "lr": 0.1 * 0.999**step, "samples_per_second": 1000 + step % 7}


if __name__ == "__main__":
    main()
