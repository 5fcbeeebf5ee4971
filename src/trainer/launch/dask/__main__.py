"""``python -m trainer.launch.dask``: commands of a Dask client; FOLDER is the attempt's ``logs/N/dask``."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import sys
from collections.abc import Coroutine
from pathlib import Path

from slipway.base.errors import SlipwayError, error_line
from slipway.base.parser import Parser

NEEDED = ("dask_jobqueue", "distributed", "cryptography")


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.command(arguments))
    except SlipwayError as error:
        sys.stderr.write(f"dask: {error_line(error)}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = Parser(prog="python -m trainer.launch.dask", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("check", help="fail if a package is missing")
    command.set_defaults(command=_check)

    command = commands.add_parser("nodes", help="request nodes, and hold them until SIGTERM or the caller's end")
    command.add_argument("folder", metavar="FOLDER", type=Path)
    command.add_argument("--workers", metavar="N", type=int, required=True, help="number of jobs, each of one node")
    command.add_argument("--min-workers", metavar="N", type=int, required=True, help="fewest nodes to start with")
    command.add_argument("--wait", metavar="SECONDS", type=float, required=True, help="longest wait for all nodes")
    command.add_argument(
        "--save", metavar="SECONDS", type=float, default=0.0, help="least time that must remain after the wait"
    )
    command.set_defaults(command=_nodes)

    command = commands.add_parser("each-node", help="run Bash on each node with the script on standard input")
    command.add_argument("folder", metavar="FOLDER", type=Path)
    command.add_argument("--together", action="store_true", help="end all nodes' commands when one fails")
    command.set_defaults(command=_each_node)

    command = commands.add_parser("on-head-node", help="run a command on the first node")
    command.add_argument("folder", metavar="FOLDER", type=Path)
    command.add_argument("words", metavar="WORD", nargs=argparse.REMAINDER)
    command.set_defaults(command=_on_head_node)

    command = commands.add_parser("cancel", help="cancel the remaining jobs")
    command.add_argument("folder", metavar="FOLDER", type=Path)
    command.set_defaults(command=_cancel)
    return top


def _run(coroutine: Coroutine[None, None, int]) -> int:
    """Run ``coroutine`` and return its result; unlike ``asyncio.run``, do not wait for Dask's coroutines."""
    return asyncio.new_event_loop().run_until_complete(coroutine)


def _check(_: argparse.Namespace) -> int:
    for name in NEEDED:
        importlib.import_module(name)
    return 0


def _nodes(arguments: argparse.Namespace) -> int:
    from trainer.launch.dask.nodes import hold  # noqa: PLC0415 -- `cancel` must not wait for Dask's imports

    wanted = {"workers": arguments.workers, "minimum": arguments.min_workers}
    return _run(hold(arguments.folder, **wanted, wait=arguments.wait, save=arguments.save))


def _each_node(arguments: argparse.Namespace) -> int:
    from trainer.launch.dask.steps import run_command  # noqa: PLC0415

    return _run(run_command(arguments.folder, sys.stdin.read(), together=arguments.together))


def _on_head_node(arguments: argparse.Namespace) -> int:
    from trainer.launch.dask.steps import on_head_node  # noqa: PLC0415

    return _run(on_head_node(arguments.folder, arguments.words))


def _cancel(arguments: argparse.Namespace) -> int:
    from trainer.launch.dask.request import Request, cancel_jobs  # noqa: PLC0415

    cancel_jobs(Request.read(arguments.folder), arguments.folder)
    return 0


if __name__ == "__main__":
    ended = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(ended)  # Dask's threads may not end
