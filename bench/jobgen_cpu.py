"""``python bench/jobgen_cpu.py``: compare ``jobgen`` with ``torchrun --help``, which does not train either."""

import contextlib
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from comparison import Comparison, compare, run, show

ROOT = Path(__file__).resolve().parents[1]
AIM = 20
SITE = ("--site", str(ROOT / "jobscripts/sites/example.toml"))
RUN = ("train.py", *SITE, "--set", 'shared=["/"]', "--venv", sys.prefix, "--dry-run")
COMMANDS = {
    "torchrun --help": ("torchrun", "--help"),
    "jobgen --help": ("jobgen", "--help"),
    "jobgen render": ("jobgen", "render", str(ROOT / "jobscripts/specs/ddp.toml"), *SITE),
    "jobgen run --dry-run": ("jobgen", "run", *RUN),
}
SCRIPT = "import torch\nfrom torch.nn.parallel import DistributedDataParallel\n"


def comparisons(rounds: int = 15) -> list[Comparison]:
    """Measure each command after an unmeasured run that fills the caches, in a user's folder on a login node."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("train.py").write_text(SCRIPT, encoding="utf-8")
        Path("sbatch").touch(mode=0o755)
        environment = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": ""}
        turns = {name: partial(run, command, **environment) for name, command in COMMANDS.items()}
        for turn in turns.values():
            turn()
        aims = dict.fromkeys([name for name in COMMANDS if name.startswith("jobgen")], AIM)
        return [compare("jobgen", turns, rounds=rounds, aims=aims)]


if __name__ == "__main__":
    found = comparisons()
    show(found)
    sys.exit(any(comparison.misses(name) for comparison in found for name in COMMANDS))
