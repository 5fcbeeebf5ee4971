"""``python -m trainer CONFIG.toml [flags]``: find this rank's place in the world, train, say how it ended."""

from __future__ import annotations

import os
import sys

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
    request = StopRequest()
    request.listen()  # before the slow imports, during which a signal would otherwise end the rank
    try:
        return _run(sys.argv[1:], request)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"", "slipway", "trainer"}:
            raise
        print(f"trainer: this Python lacks {error.name}: {GET_ONE}", file=sys.stderr)
        return EXIT_CONFIG


def _run(argv: list[str], request: StopRequest) -> int:
    from slipway.environment import read_environment  # noqa: PLC0415 -- main says why all this comes late
    from slipway.errors import SlipwayError, one_line  # noqa: PLC0415
    from trainer.cli import parse  # noqa: PLC0415
    from trainer.errors import ConfigError, explain  # noqa: PLC0415

    try:
        settings = parse(argv)
        environment = read_environment(os.environ)
        if ranks := settings.launch.nproc_per_node:
            from trainer.spawn import spawn  # noqa: PLC0415 -- needs no torch

            if settings.launch.backend not in ("auto", "ddp"):
                raise ConfigError(f"--nproc-per-node starts ddp ranks, not {settings.launch.backend} ones.")
            return spawn(argv, ranks, request, environment)
        from trainer.rank import run_rank  # noqa: PLC0415

        return run_rank(settings, request, environment)
    except SlipwayError as error:
        print(f"trainer: {one_line(explain(error))}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
