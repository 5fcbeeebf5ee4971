"""``python bench/compiled.py [--rounds N]``: time one step with --compile, with and without the run folder's cache.

ResNet-18 on small images, on one CPU. torch's caches are empty each time, as on a node that is new to the job. The
second contender's run folder holds the code that an earlier attempt compiled (slipway.checkpoint.compile_cache).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from comparison import Comparison, Cost, compare, run, show

TRAINER = [
    *(sys.executable, "-m", "trainer", "--arch", "resnet18", "--compile", "--device", "cpu", "--threads", "1"),
    *("--dataset", "synthetic", "--synthetic-shape", "3", "32", "32", "--synthetic-samples", "64"),
    *("--batch-size", "16", "--val-batch-size", "16", "--no-figures"),
]


def train(folder: Path, *, steps: int) -> Cost:
    """Return the cost of an attempt on a new node that trains in ``folder`` up to step ``steps``."""
    words = ["--output-dir", str(folder), "--max-steps", str(steps), "--resume", "auto"]
    with tempfile.TemporaryDirectory() as disk:
        cache = str(Path(disk, "inductor"))
        return run([*TRAINER, *words], TRAINER_ATTEMPT=str(steps), TMPDIR=disk, TORCHINDUCTOR_CACHE_DIR=cache)


@contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """Yield the path of a temporary copy of ``folder``."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(shutil.copytree(folder, Path(place, "run"), symlinks=True))


def comparisons(rounds: int = 1) -> list[Comparison]:
    """Compare starting with and without the cache."""

    def turn(begun: Path, *, keeps: bool) -> Cost:
        with copied(begun) as folder:
            if not keeps:
                shutil.rmtree(folder / "compiled")
            return train(folder, steps=2)

    with tempfile.TemporaryDirectory() as place:
        begun = Path(place, "run")
        train(begun, steps=1)
        turns = {"nothing kept": partial(turn, begun, keeps=False), "kept": partial(turn, begun, keeps=True)}
        return [compare("start and a step of a compiled ResNet-18", turns, rounds=rounds)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    show(comparisons(parser.parse_args().rounds))
