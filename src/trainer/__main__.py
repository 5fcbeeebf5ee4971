"""``python -m trainer CONFIG.toml [flags]``: find this rank's place in the world, train, say how it ended."""

from __future__ import annotations

import os
import sys

from slipway.stop import StopRequest


def main() -> int:
    """Run the command line and return the exit code (docs/contract.md lists them)."""
    request = StopRequest()
    request.listen()  # before the slow imports, during which a signal would otherwise end the rank
    from slipway.environment import read_environment  # noqa: PLC0415 -- see above
    from slipway.errors import SlipwayError, one_line  # noqa: PLC0415
    from trainer.cli import parse  # noqa: PLC0415 -- see above
    from trainer.errors import ConfigError, explain  # noqa: PLC0415

    argv = sys.argv[1:]
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
