"""The command line of ``jobgen study``."""

from __future__ import annotations

import argparse
from pathlib import Path

from jobgen.batch.options import add_common, count, counts, words


def add_study(commands: argparse._SubParsersAction[argparse.ArgumentParser], job: argparse.ArgumentParser) -> None:
    """Add the command to ``commands``, with the options of any ``job``."""
    what = "submit one training on several allocations; run again, it submits what is missing or has failed"
    command = commands.add_parser("study", parents=[job], help=what)
    add_common(command, what="study")
    command.add_argument("--ranks", required=True, type=counts, metavar="N,N...", help="over all nodes")
    command.add_argument("--cpus", required=True, type=counts, metavar="N,N...", help="cores of each rank")
    command.add_argument("--nodes", type=counts, default=[], metavar="N,N...", help="default: as few as have room")
    command.add_argument("--backend", type=words, default=[], metavar="NAME,NAME", help="default: the spec's")
    command.add_argument("--container", type=words, default=[], metavar="0,1", help="default: the site's")
    what = "strong: the same batch over all ranks; weak: the same on each rank (default: %(default)s)"
    command.add_argument("--scaling", choices=["strong", "weak"], default="strong", help=what)
    what = "of a weak study: samples of a step on each rank (default: as the configuration says for one)"
    command.add_argument("--batch", type=count, default=0, metavar="N", help=what)
    command.add_argument("--steps", type=count, default=0, metavar="N", help="end each point after so many steps")
    command.set_defaults(command=_study)


def _study(arguments: argparse.Namespace) -> int:
    from jobgen.batch.study.command import StudyRequest, study  # noqa: PLC0415 -- `--help` needs none of it
    from jobgen.batch.study.grid import Axes  # noqa: PLC0415

    return study(
        StudyRequest(
            spec=arguments.spec,
            site=arguments.site,
            settings=arguments.settings,
            arguments=arguments.arguments,
            folder=Path(arguments.output),
            axes=Axes(arguments.ranks, arguments.cpus, arguments.nodes, arguments.backend, arguments.container),
            scaling=arguments.scaling,
            batch=arguments.batch,
            steps=arguments.steps,
            limit=arguments.limit,
            yes=arguments.yes,
            dry_run=arguments.dry_run,
        )
    )
