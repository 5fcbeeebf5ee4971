"""Runs random scripts with a session whole and killed, and says where their results differ.

python tests/fuzz                           30 seconds of it
python tests/fuzz --minutes 20              or --count 500, --first SEED
python tests/fuzz --seed 17 [--shrink]      one of them, with its text
python tests/fuzz tests/fuzz/cases/*.py     kept ones
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

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # which libraries read as they are loaded
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import parts  # noqa: E402, F401 -- fills the groups
from cases import Case, case_of, read_case  # noqa: E402
from judge import Finding, Judge  # noqa: E402
from options import Plan, differing, draw_plan, settled  # noqa: E402

import forkserver  # noqa: E402

MEMORY = Path("/dev/shm")  # noqa: S108 -- where it costs nothing that each save is forced to the disk
CHAINS = 2
"""Runs of each script that are killed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="cases to run, instead of random ones")
    parser.add_argument("--minutes", type=float, default=0.5)
    parser.add_argument("--count", type=int, help="number of scripts, instead of the time")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--stride", type=int, default=1, help="between two seeds")
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--without", nargs="+", default=[], metavar="GROUP: OPTION", help="what not to draw")
    parser.add_argument("--shrink", action="store_true", help="reduce what fails")
    parser.add_argument("--keep-going", action="store_true", help="do not end at the first failure")
    parser.add_argument("--folder", type=Path, help="where to write scripts that fail")
    args = parser.parse_args()
    forkserver.preload()
    place = Path(tempfile.mkdtemp(prefix="slipway-fuzz-", dir=MEMORY if MEMORY.is_dir() else None))
    try:
        if args.files:
            return _run_files(args.files, place)
        return _campaign(args, place)
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


def _campaign(args: argparse.Namespace, place: Path) -> int:
    began, count, attempts, failures = time.monotonic(), 0, 0, []
    said = began
    kinds: Counter[str] = Counter()
    seed = args.seed if args.seed is not None else args.first
    while True:
        plan = draw_plan(random.Random(seed), args.without)
        case, found, runs = examine(plan, seed, place)
        count, attempts = count + 1, attempts + runs
        kinds["exact" if case.is_exact else "refused" if case.refused else "not restorable"] += 1
        if found:
            failures.append(seed)
            print(f"seed {seed}: {found}\n    {differing(plan)}", flush=True)
            if args.seed is not None or args.shrink:
                plan, found = shrink(plan, seed, found, place) if args.shrink else (plan, found)
                case = case_of(plan, f"seed {seed}: {found}")
                case.chains = [[kill for kill in found.chain if "@" in kill or "~" in kill]] if found.chain else []
                print(f"\n{case.text()}\n{found.output}", flush=True)
            if args.folder:
                args.folder.mkdir(parents=True, exist_ok=True)
                (args.folder / f"seed_{seed}.py").write_text(case.text())
        elif args.seed is not None:
            print(f"{case.text()}\nas expected")
        now = time.monotonic()
        over = now - began > 60 * args.minutes if args.count is None else count >= args.count
        over |= args.seed is not None or bool(failures and not args.keep_going)
        if over or now - said > 10:
            said = now
            print(
                f"fuzz: {count} scripts ({', '.join(f'{number} {kind}' for kind, number in kinds.items())}), "
                f"{attempts} attempts in {now - began:.0f} s, up to seed {seed}: {len(failures)} failed",
                flush=True,
            )
        if over:
            return int(bool(failures))
        seed += args.stride


def examine(plan: Plan, seed: int, place: Path) -> tuple[Case, Finding | None, int]:
    """Run the script of a plan; return its case, what is wrong, and the number of attempts."""
    case = case_of(plan, f"seed {seed}")
    judge = Judge(case, place / str(seed))
    found = judge.examine(random.Random(f"{seed} kills"), chains=CHAINS)
    shutil.rmtree(place / str(seed), ignore_errors=True)
    return case, found, judge.attempts


def shrink(plan: Plan, seed: int, found: Finding, place: Path) -> tuple[Plan, Finding]:
    """Leave out parts of a plan while what is found stays; then kills."""
    changed = True
    while changed:
        changed = False
        for group in [*differing(plan)]:
            less = settled({name: value for name, value in plan.items() if name != group})
            if len(differing(less)) >= len(differing(plan)):
                continue
            still = next(filter(None, (_still(less, seed, found, place, chain) for chain in _chains(found))), None)
            if still:
                plan, found, changed = less, still, True
    while len(found.chain) > 1:
        shorter = [found.chain[:number] + found.chain[number + 1 :] for number in range(len(found.chain))]
        still = next(filter(None, (_still(plan, seed, found, place, chain) for chain in shorter)), None)
        if not still or len(still.chain) >= len(found.chain):
            break
        found = still
    return plan, found


def _chains(found: Finding) -> list[list[str]]:
    """Return chains to try: that of the finding, and none, for which others are drawn."""
    kills = [kill for kill in found.chain if "@" in kill or "~" in kill]
    return [kills, []] if kills else [[]]


def _still(plan: Plan, seed: int, found: Finding, place: Path, chain: list[str]) -> Finding | None:
    case = case_of(plan, f"seed {seed}")
    chain = [kill for kill in chain if "@" in kill or "~" in kill]
    case.chains = [chain] if chain else []
    now = Judge(case, place / "shrunk").examine(random.Random(seed), chains=6)
    shutil.rmtree(place / "shrunk", ignore_errors=True)
    return now if now and now.kind == found.kind else None


if __name__ == "__main__":
    sys.exit(main())
