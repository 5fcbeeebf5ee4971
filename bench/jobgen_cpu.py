"""``python bench/jobgen_cpu.py``: compare ``jobgen`` with ``torchrun --help``, which does not train either."""

import sys
from functools import partial
from pathlib import Path

from comparison import Comparison, compare, run, show

ROOT = Path(__file__).resolve().parents[1]
AIM = 20
RENDER = ("render", str(ROOT / "jobscripts/specs/ddp.toml"), "--site", str(ROOT / "jobscripts/sites/example.toml"))
COMMANDS = {
    "torchrun --help": ("torchrun", "--help"),
    "jobgen --help": ("jobgen", "--help"),
    "jobgen render": ("jobgen", *RENDER),
}


def comparisons(rounds: int = 15) -> list[Comparison]:
    """Measure each command after an unmeasured run that fills the caches."""
    for command in COMMANDS.values():
        run(command)
    turns = {name: partial(run, command) for name, command in COMMANDS.items()}
    aims = dict.fromkeys([name for name in COMMANDS if name.startswith("jobgen")], AIM)
    return [compare("jobgen", turns, rounds=rounds, aims=aims)]


if __name__ == "__main__":
    found = comparisons()
    show(found)
    sys.exit(any(comparison.misses(name) for comparison in found for name in COMMANDS))
