"""Entry point of ``python -m trainer CONFIG.toml [flags]``: train as one rank and return the exit code.

If the first word is the name of a command, run that command instead (``trainer.config.commands``).
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from functools import partial

from slipway.base.contract import EXIT_CONFIG
from slipway.base.stop import StopRequest
from slipway.run.cause import write_cause
from trainer.launch.exits import REMEDY, run_to_exit_code

OLDEST_PYTHON = (3, 11)


def main() -> int:
    """Run the command line and return the exit code (docs/reference/exit-codes.md lists them)."""
    if sys.version_info < OLDEST_PYTHON:
        found = ".".join(map(str, sys.version_info[:2]))
        print(
            f"trainer: error[old-python]: the trainer requires Python 3.11 or later; this is {found}: {REMEDY}",
            file=sys.stderr,
        )
        return EXIT_CONFIG
    request = StopRequest()
    request.listen()  # before the slow imports: a signal during them would otherwise kill the rank
    return run_to_exit_code(lambda: _command_or_training(sys.argv[1:], request))


def _command_or_training(argv: list[str], request: StopRequest) -> int:
    """Run the command in ``argv``, or train; return the exit code."""
    from trainer.config.commands import find_command  # noqa: PLC0415 -- run_to_exit_code reports missing packages

    if command := find_command(argv):
        request.close()  # a command has nothing to save: a signal ends it at once
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        return command(argv[1:])
    # Read only the flag that job scripts pass: parsing the other arguments may be what fails.
    folder = next((value for flag, value in itertools.pairwise(argv) if flag == "--output-dir"), None)
    on_error = partial(write_cause, folder=folder, variables=os.environ)
    return run_to_exit_code(lambda: _train(argv, request), on_error=on_error)


def _train(argv: list[str], request: StopRequest) -> int:
    from slipway.base.environment import Launcher, read_environment  # noqa: PLC0415
    from trainer.config.cli import parse  # noqa: PLC0415

    settings = parse(argv)
    environment = read_environment(os.environ)
    if environment.umask is not None:
        os.umask(environment.umask)  # ssh and mpirun do not pass it on
    if environment.launcher is Launcher.TORCHRUN:
        request.stop_if_launcher_dies()
    if settings.launch.nproc_per_node:
        from trainer.launch.spawn import spawn, train  # noqa: PLC0415 -- needs no torch

        return spawn(train, settings, request, environment)
    from trainer.launch.rank import run_rank  # noqa: PLC0415

    return run_rank(settings, request, environment)


if __name__ == "__main__":
    sys.exit(main())
