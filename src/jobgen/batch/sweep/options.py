"""Command-line options of ``jobgen sweep``."""

from __future__ import annotations

import argparse

from jobgen.batch.options import add_common, count, counts, request_of

LARGEST_SEED = 2**32 - 1


def add_sweep_options(command: argparse.ArgumentParser) -> None:
    """Add the options of a sweep, besides those of any job."""
    add_common(command, what="sweep")
    what = "draw N random trials instead of the grid; log:LOW:HIGH and uniform:LOW:HIGH are ranges to draw from"
    command.add_argument("--random", type=count, default=0, metavar="N", help=what)
    command.add_argument("--seed", type=_seed, default=0, help="seed of the random draw (default: %(default)s)")
    what = "repeat each trial with K seeds, 0 to K - 1 (default: one trial with the configuration's seed)"
    command.add_argument("--seeds", type=count, default=1, metavar="K", help=what)
    command.add_argument("--seed-flag", default="", metavar="FLAG", help="the user script's flag for its seed")
    command.add_argument("--at-once", type=count, default=0, metavar="N", help="run at most N trials at the same time")
    what = "epochs after which only the best trials continue, such as 2,6,18; the last is the full training length"
    command.add_argument("--rungs", type=counts, default=[], metavar="N,N...", help=what)
    what = "with --rungs: the best 1/N of the trials continue (default: %(default)s)"
    command.add_argument("--keep", type=count, default=3, metavar="N", help=what)
    what = "metric that ranks trials: accuracy, loss, or another name in metrics.jsonl (default: %(default)s)"
    command.add_argument("--metric", default="accuracy", metavar="NAME", help=what)
    what = "whether a higher or a lower metric is better (default: min for a loss, else max)"
    command.add_argument("--goal", choices=["max", "min"], help=what)
    command.set_defaults(command=_sweep, takes_arguments=True)


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= LARGEST_SEED):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {LARGEST_SEED}")
    return int(text)


def _sweep(arguments: argparse.Namespace) -> int:
    from jobgen.batch.sweep.command import sweep  # noqa: PLC0415 -- keeps `--help` fast
    from jobgen.batch.sweep.request import SweepRequest  # noqa: PLC0415
    from jobgen.render.files import site_or_default  # noqa: PLC0415

    return sweep(request_of(SweepRequest, arguments, site=site_or_default(arguments.site)))
