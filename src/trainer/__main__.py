"""``python -m trainer CONFIG.toml [flags]``: find this rank's place in the world, train, say how it ended.

Or, with the name of a command for the first word, do that instead (``trainer.commands``).
"""

from __future__ import annotations

import os
import signal
import sys
import traceback

from slipway.layout import EXIT_CONFIG
from slipway.stop import StopRequest

OLDEST_PYTHON = (3, 11)
GET_ONE = "take the image, or an environment made by build/setup, or pip install '.[train]' in a clone."
"""Of the base install, which is made for ``jobgen`` on login nodes."""


def main() -> int:
    """Run the command line and return the exit code (docs/contract.md lists them)."""
    if sys.version_info < OLDEST_PYTHON:
        found = ".".join(map(str, sys.version_info[:2]))
        print(f"trainer: the trainer needs Python 3.11 or later, and this is {found}: {GET_ONE}", file=sys.stderr)
        return EXIT_CONFIG
    try:
        return _command_or_training(sys.argv[1:])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"", "slipway", "trainer"}:
            raise
        print(f"trainer: this Python lacks {error.name}: {GET_ONE}", file=sys.stderr)
        return EXIT_CONFIG


def _command_or_training(argv: list[str]) -> int:
    """Do what ``argv`` asks for, and return the exit code; errors that a user can act on are one line."""
    request = StopRequest()
    request.listen()  # before the slow imports, during which a signal would otherwise end the rank
    from slipway.errors import SlipwayError, one_line  # noqa: PLC0415 -- main says why all this comes late
    from trainer.commands import find_command  # noqa: PLC0415
    from trainer.errors import explain  # noqa: PLC0415

    try:
        if command := find_command(argv):
            request.close()  # a command saves nothing: a signal ends it at once
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            return command(argv[1:])
        return _train(argv, request)
    except SlipwayError as error:
        print(f"trainer: {one_line(explain(error))}", file=sys.stderr, flush=True)
        return error.exit_code
    except ModuleNotFoundError:
        raise  # main says what to do
    except Exception as error:  # noqa: BLE001 -- it is reported, and the process ends
        traceback.print_exception(error)
        print(f"trainer: {one_line(f'{type(error).__name__}: {error}')}", file=sys.stderr, flush=True)
        return SlipwayError.exit_code


def _train(argv: list[str], request: StopRequest) -> int:
    from slipway.environment import Launcher, read_environment  # noqa: PLC0415
    from trainer.cli import parse  # noqa: PLC0415

    settings = parse(argv)
    environment = read_environment(os.environ)
    if environment.umask is not None:
        os.umask(environment.umask)  # which ssh and mpirun do not pass on
    if environment.launcher is Launcher.TORCHRUN:
        request.follow_launcher()
    if settings.launch.nproc_per_node:
        from trainer.spawn import spawn  # noqa: PLC0415 -- needs no torch

        return spawn(argv, settings, request, environment)
    from trainer.rank import run_rank  # noqa: PLC0415

    return run_rank(settings, request, environment)


if __name__ == "__main__":
    sys.exit(main())
