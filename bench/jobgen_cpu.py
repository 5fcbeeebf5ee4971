"""CPU time of ``jobgen`` against ``torchrun --help``, which also runs before any training: ``make bench``.

The commands take turns, so that whatever else the machine does falls on all of them alike; medians are compared.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 15
BOUND = 1 / 20
"""What the project promises."""
RENDER = ("render", "jobscripts/specs/ddp.toml", "--site", "jobscripts/sites/example.toml")
COMMANDS = {
    "torchrun --help": ("torchrun", "--help"),
    "jobgen --help": ("jobgen", "--help"),
    "jobgen render": ("jobgen", *RENDER),
}


def cpu_seconds(command: tuple[str, ...]) -> float:
    """Run ``command`` and return its user and system time, with that of its children."""
    before = os.times()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def main() -> int:
    """Print a row per command and return 1 if one is above the bound."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(ROUNDS + 1):
        for name, command in COMMANDS.items():
            used = cpu_seconds(command)
            if number:  # the first round fills the caches
                seconds[name].append(used)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    peer = median["torchrun --help"]
    print(f"median CPU seconds of {ROUNDS} interleaved runs")
    for name, used in median.items():
        print(f"{name:16} {used:6.3f}   1/{peer / used:.1f}")
    return int(max(used for name, used in median.items() if name.startswith("jobgen")) > peer * BOUND)


if __name__ == "__main__":
    sys.exit(main())
