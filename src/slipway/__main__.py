"""Command line ``slipway`` (``python -m slipway``) for work with run folders."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import List, Optional

from slipway.base.contract import VERSION
from slipway.base.errors import SlipwayError, code_of, error_line
from slipway.base.parser import Parser

OLDEST_PYTHON = (3, 11)
SUFFIXES = (".pt", ".pth", ".safetensors")
INSTALL_HINT = "use your training environment, or run pip install 'slipway-hpc[session]' with Python 3.11 or later."


def main(argv: Optional[List[str]] = None) -> int:
    """Run the command line and return the exit code."""
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.command(arguments))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in {"", "slipway"}:
            raise
        return _say(SlipwayError("missing-package", f"this Python lacks {error.name}: {INSTALL_HINT}"))
    except (SlipwayError, OSError) as error:
        return _say(error)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = Parser(prog="slipway", description="Work with the run folder of a training run.")
    top.add_argument("--version", action="version", version=VERSION)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    what = "write the weights of the newest checkpoint as a state_dict that plain torch can load"
    command = commands.add_parser("export", help=what, description=f"{what[0].upper()}{what[1:]}.")
    command.add_argument("run", metavar="RUN", type=Path, help="the run folder, or one of its checkpoints")
    command.add_argument(
        "target", metavar="FILE", type=Path, help=f"the file to write; it must not exist yet: {', '.join(SUFFIXES)}"
    )
    command.add_argument("--best", action="store_true", help="use the checkpoint with the best metric")
    command.add_argument(
        "--model", metavar="NAME", help="one of several models, or ema: the trainer's average of the weights"
    )
    command.set_defaults(command=_export)
    return top


def _say(error: Exception) -> int:
    print(f"slipway: {error_line(error)}", file=sys.stderr)
    return code_of(error)


def _export(arguments: argparse.Namespace) -> int:
    if arguments.target.suffix not in SUFFIXES:
        raise SlipwayError(
            "export-format", f"{arguments.target} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}."
        )
    if sys.version_info < OLDEST_PYTHON:
        raise SlipwayError("old-python", f"this is Python {sys.version.split()[0]}: {INSTALL_HINT}")
    from slipway.checkpoint.export import export  # noqa: PLC0415 -- imports torch

    what = export(arguments.run, arguments.target, best=arguments.best, model=arguments.model)
    print(f"{arguments.target}: {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
