"""Command-line options of ``jobgen study``."""

from __future__ import annotations

import argparse

from jobgen.batch.options import add_common, count, counts, request_of, words


def add_study_options(command: argparse.ArgumentParser) -> None:
    """Add the options of a study, besides those of any job."""
    add_common(command, what="study")
    command.add_argument(
        "--ranks", required=True, type=counts, metavar="N,N...", help="numbers of ranks over all nodes"
    )
    command.add_argument("--cpus", required=True, type=counts, metavar="N,N...", help="cores of each rank")
    command.add_argument(
        "--nodes",
        type=counts,
        default=[],
        metavar="N,N...",
        help="numbers of nodes (default: the fewest on which the ranks fit)",
    )
    command.add_argument(
        "--backend", type=words, default=[], metavar="NAME,NAME", help="backends (default: the spec's)"
    )
    command.add_argument(
        "--container", type=words, default=[], metavar="0,1", help="values of USE_CONTAINER (default: the site's)"
    )
    what = "strong: fixed global batch; weak: fixed batch per rank (default: %(default)s)"
    command.add_argument("--scaling", choices=["strong", "weak"], default="strong", help=what)
    what = "with --scaling weak: samples per step on each rank (default: the configuration's value for one rank)"
    command.add_argument("--batch", type=count, default=0, metavar="N", help=what)
    command.add_argument("--steps", type=count, default=0, metavar="N", help="end each point after N steps")
    command.set_defaults(command=_study, takes_arguments=True)


def _study(arguments: argparse.Namespace) -> int:
    from jobgen.batch.study.command import StudyRequest, study  # noqa: PLC0415 -- keeps `--help` fast
    from jobgen.batch.study.grid import Axes  # noqa: PLC0415
    from jobgen.render.files import site_or_default  # noqa: PLC0415

    axes = Axes(arguments.ranks, arguments.cpus, arguments.nodes, arguments.backend, arguments.container)
    return study(request_of(StudyRequest, arguments, axes=axes, site=site_or_default(arguments.site)))
