"""``python bench [NAME ...] [--gpu] [--rounds N]``: compare with other programs, as tables and a figure.

Results are in runs/bench-DATE: bench.md, bench.png, and bench.json with the cost of each turn. --gpu selects the
comparisons that a GPU speeds up; without a GPU they run in small sizes on the CPU, only to test that they work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import images
import jobgen_cpu
import matplotlib as mpl
import order
import packed
import saves
import start
import torch
import training
from comparison import AGAIN, Comparison

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
PARTS: dict[str, Callable[..., Iterable[Comparison]]] = {
    "jobgen": jobgen_cpu.comparisons,
    "start": start.comparisons,
    "order": order.comparisons,
    "training": training.comparisons,
    "saves": saves.comparisons,
    "images": images.comparisons,
    "packed": packed.comparisons,
}
NAMED_ONLY = {"packed"}
"""Parts that run only if they are named: packed needs root and 11 GB of disk."""
EXIT_VOID = 3
"""Exit code if the machine was too busy for a valid comparison; 1 is a failure."""
ROW, WIDTH = 0.26, 9.0
"""Sizes in the figure, in inches."""


def gpu_parts() -> dict[str, Callable[..., Iterable[Comparison]]]:
    """Return the parts for a GPU; in small sizes for the CPU if there is none."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        print("no GPU: small sizes on the CPU", file=sys.stderr)
    return {
        "training": partial(training.comparisons, device=device, tiny=device == "cpu"),
        "saves": partial(saves.comparisons, device=device, tiny=device == "cpu"),
    }


def machine() -> str:
    """Return a description of the machine, the torch version and the commit."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.10 lacks it
    flags = " ".join(sorted(name for name, there in capabilities.items() if there is True))
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    version = os.environ.get("MAKE_GPU_COMMIT", "")
    if not version and shutil.which("git"):
        version = subprocess.run(describe, check=False, capture_output=True, text=True).stdout.strip()
    return f"{os.cpu_count()} CPUs: {cpu} ({flags}){gpu}; torch {torch.__version__}; commit {version or 'unknown'}"


def draw(comparisons: list[Comparison], path: Path) -> None:
    """Draw the factor by which each contender costs less than its peer: median as bar, minimum to maximum as line."""
    heights = [len(comparison.costs) for comparison in comparisons]
    figure, axes = plt.subplots(
        len(comparisons),
        figsize=(WIDTH, ROW * sum(heights) + 0.45 * len(heights) + 0.6),
        sharex=True,
        squeeze=False,
        gridspec_kw={"height_ratios": heights},
        layout="constrained",
    )
    for axis, comparison in zip(axes[:, 0], comparisons, strict=True):
        for row, name in enumerate(comparison.costs):
            ratios = sorted(comparison.ratios(name))
            middle = statistics.median(ratios)
            colour = "0.75" if row == 0 or name == AGAIN else "tab:red" if comparison.misses(name) else "tab:blue"
            axis.barh(row, middle - 1, left=1, color=colour)
            axis.plot([ratios[0], ratios[-1]], [row, row], color="black", linewidth=1)
            if aim := comparison.aims(name).get(comparison.peer):
                axis.plot([aim, aim], [row - 0.45, row + 0.45], color="black", linewidth=2)
            axis.annotate(f" {middle:.3g}", (max(middle, ratios[-1]), row), va="center", fontsize=8)
        axis.set_yticks(range(len(comparison.costs)), list(comparison.costs), fontsize=8)
        axis.set_title(comparison.measure.title + (" (void)" if comparison.is_void else ""), fontsize=9, loc="left")
        axis.invert_yaxis()
        axis.set_xscale("log")
        axis.margins(x=0.15)
    axes[-1, 0].set_xlabel("times less than the first (black: target, and minimum to maximum of all rounds)")
    figure.savefig(path, dpi=120)


def main() -> int:
    """Run the comparisons and return the exit code: EXIT_VOID if one is void."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rounds", type=int, help="rounds of each comparison; by default 3 to 15")
    name = f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / name, help="a new folder, by default in runs/")
    arguments = parser.parse_args()
    parts = gpu_parts() if arguments.gpu else PARTS
    if unknown := set(arguments.names) - set(parts):
        parser.error(f"no comparison {', '.join(sorted(unknown))}; available: {', '.join(parts)}")
    folder = arguments.folder
    folder.mkdir(parents=True)
    rounds = {"rounds": arguments.rounds} if arguments.rounds else {}
    found: list[Comparison] = []
    where = machine()
    for name in arguments.names or [name for name in parts if name not in NAMED_ONLY]:
        for comparison in parts[name](**rounds):
            print(comparison.table(), "\n", flush=True)
            found.append(comparison)
            # Write the results so far, in case the next comparison fails.
            tables = "\n\n".join(comparison.table() for comparison in found)
            (folder / "bench.md").write_text(f"{where}\n\n{tables}\n", encoding="utf-8")
            rows = [comparison.as_json() for comparison in found]
            text = json.dumps({"machine": where, "comparisons": rows}, indent=1)
            (folder / "bench.json").write_text(text, encoding="utf-8")
    draw(found, folder / "bench.png")
    print(f"{folder}/bench.png", file=sys.stderr)
    return EXIT_VOID if any(comparison.is_void for comparison in found) else 0


if __name__ == "__main__":
    sys.exit(main())
