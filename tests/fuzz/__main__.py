"""Runs random scripts with a session, uninterrupted and killed, and reports where their results differ.

python tests/fuzz                           runs for 30 seconds
python tests/fuzz --minutes 20              or --count 500, --first SEED
python tests/fuzz --seed 17 [--shrink]      runs one of them and prints its text
python tests/fuzz tests/fuzz/cases/*.py     runs saved cases
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # which libraries read when they are loaded
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import parts  # noqa: E402, F401 -- fills the groups
from cases import case_of, read_case  # noqa: E402
from judge import Judge  # noqa: E402
from options import differing, draw_plan, parse_plan  # noqa: E402
from shrink import Shrinker  # noqa: E402

import forkserver  # noqa: E402

MEMORY = Path("/dev/shm")  # noqa: S108 -- where it costs nothing that each save is forced to the disk
CHAINS = 2
"""Killed runs of each script."""
SILENCE = 10.0
"""Seconds between two progress lines of a campaign."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="cases to run, instead of random ones")
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--count", type=int, help="number of scripts, instead of the time")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--stride", type=int, default=1, help="between two seeds")
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--with", dest="parts", nargs="+", metavar="GROUP: OPTION", help="the parts, and no others")
    parser.add_argument("--without", nargs="+", default=[], metavar="GROUP: OPTION", help="what is not to be drawn")
    parser.add_argument("--shrink", action="store_true", help="reduce what fails")
    parser.add_argument("--keep-going", action="store_true", help="do not end at the first failure")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write what fails into it")
    args = parser.parse_args()
    forkserver.preload()
    place = Path(tempfile.mkdtemp(prefix="slipway-fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        return _run_files(args.files, place) if args.files else Campaign(args, place).run()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _run_files(files: list[Path], place: Path) -> int:
    failed = 0
    for file in files:
        found = Judge(read_case(file), place / file.stem).examine(random.Random(0), chains=CHAINS)
        failed += bool(found)
        print(f"{file.name}: {found or 'as expected'}", flush=True)
        if found:
            print(found.output)
        shutil.rmtree(place / file.stem, ignore_errors=True)
    return int(failed > 0)


class Campaign:
    """Runs random scripts, one after another."""

    def __init__(self, args: argparse.Namespace, place: Path) -> None:
        self._args, self._place = args, place
        self._began = self._said = time.monotonic()
        self._kinds: Counter[str] = Counter()
        self._attempts = self._failed = 0
        self._seed: int = args.first if args.seed is None else args.seed

    def run(self) -> int:
        """Return the exit code: 1 if one has failed."""
        while True:
            self._examine()
            over = self._is_over()
            if over or time.monotonic() - self._said > SILENCE:
                self._report()
            if over:
                return int(self._failed > 0)
            self._seed += self._args.stride

    def _is_over(self) -> bool:
        args, count = self._args, self._kinds.total()
        if args.seed is not None or (self._failed and not args.keep_going):
            return True
        return time.monotonic() - self._began > 60 * args.minutes if args.count is None else count >= args.count

    def _examine(self) -> None:
        args, seed = self._args, self._seed
        plan = parse_plan(args.parts) if args.parts else draw_plan(random.Random(seed), args.without)
        case, folder = case_of(plan, f"seed {seed}"), self._place / str(seed)
        judge = Judge(case, folder)
        found = judge.examine(random.Random(f"{seed} kills"), chains=CHAINS)
        shutil.rmtree(folder, ignore_errors=True)
        self._attempts += judge.attempts
        self._kinds["exact" if case.is_exact else "refused" if case.refused else "not restorable"] += 1
        if found:
            self._failed += 1
            print(f"seed {seed}: {found}\n    {differing(plan)}", flush=True)
            case = case_of(plan, f"seed {seed}: {found}", [found.kills])
            if args.shrink:
                case, found = Shrinker(plan, seed, found, folder).shrink()
            if args.keep:
                args.keep.mkdir(parents=True, exist_ok=True)
                (args.keep / f"seed_{seed}.py").write_text(case.text(), encoding="utf-8")
        if (found and args.shrink) or args.seed is not None:
            print(f"\n{case.text()}\n{found.output if found else 'as expected'}", flush=True)

    def _report(self) -> None:
        self._said = time.monotonic()
        kinds = ", ".join(f"{number} {kind}" for kind, number in self._kinds.items())
        print(
            f"fuzz: {self._kinds.total()} scripts ({kinds}), {self._attempts} attempts in "
            f"{self._said - self._began:.0f} s, up to seed {self._seed}: {self._failed} failed",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
