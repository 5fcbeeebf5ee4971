"""The command line of ``jobgen sweep``."""

from __future__ import annotations

import argparse
from pathlib import Path

from jobgen.batch.options import add_common, count, counts

LARGEST_SEED = 2**32 - 1


def add_sweep(commands: argparse._SubParsersAction[argparse.ArgumentParser], job: argparse.ArgumentParser) -> None:
    """Add the command to ``commands``, with the options of any ``job``."""
    what = (
        "submit one training with several values of its configuration as an array of jobs; run again, it submits what "
    )
    command = commands.add_parser("sweep", parents=[job], help=what + "is missing or has failed, or goes on")
    add_common(command, what="sweep")
    what = "draw so many trials, in place of the grid; log:LOW:HIGH and uniform:LOW:HIGH are ranges to draw from"
    command.add_argument("--random", type=count, default=0, metavar="N", help=what)
    command.add_argument("--seed", type=_seed, default=0, help="of drawing (default: %(default)s)")
    what = "repeat each trial with so many seeds, 0 to K - 1 (default: one trial, with the configuration's seed)"
    command.add_argument("--seeds", type=count, default=1, metavar="K", help=what)
    command.add_argument("--seed-flag", default="", metavar="FLAG", help="by which a script of your own takes its seed")
    command.add_argument("--at-once", type=count, default=0, metavar="N", help="run at most so many trials together")
    what = "epochs behind which the best trials alone go on, as 2,6,18; the last one is how long a trial trains"
    command.add_argument("--rungs", type=counts, default=[], metavar="N,N...", help=what)
    what = "with --rungs: the best one of so many goes on (default: %(default)s)"
    command.add_argument("--keep", type=count, default=3, metavar="N", help=what)
    what = "by which trials are compared: accuracy, loss, or another name in metrics.jsonl (default: %(default)s)"
    command.add_argument("--metric", default="accuracy", metavar="NAME", help=what)
    what = "whether more or less of the metric is better (default: min of a loss, else max)"
    command.add_argument("--goal", choices=["max", "min"], help=what)
    command.set_defaults(command=_sweep)


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= LARGEST_SEED):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {LARGEST_SEED}")
    return int(text)


def _sweep(arguments: argparse.Namespace) -> int:
    from jobgen.batch.sweep.command import SweepRequest, sweep  # noqa: PLC0415 -- `--help` needs none of it

    return sweep(
        SweepRequest(
            spec=arguments.spec,
            site=arguments.site,
            settings=arguments.settings,
            arguments=arguments.arguments,
            folder=Path(arguments.output),
            random=arguments.random,
            seed=arguments.seed,
            seeds=arguments.seeds,
            seed_flag=arguments.seed_flag,
            at_once=arguments.at_once,
            rungs=arguments.rungs,
            keep=arguments.keep,
            metric=arguments.metric,
            goal=arguments.goal,
            limit=arguments.limit,
            yes=arguments.yes,
            dry_run=arguments.dry_run,
        )
    )
