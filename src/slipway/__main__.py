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

    what = "write the weights of the newest checkpoint to a state_dict for plain torch, or to a Hugging Face folder"
    command = commands.add_parser("export", help=what, description=f"{what[0].upper()}{what[1:]}.")
    command.add_argument("run", metavar="RUN", type=Path, help="the run folder, or one of its checkpoints")
    command.add_argument(
        "target",
        metavar="TARGET",
        help=f"what to write, which must not exist yet: a file ({', '.join(SUFFIXES)}), or a folder/ of safetensors "
        "files with an index",
    )
    command.add_argument("--best", action="store_true", help="use the checkpoint with the best metric")
    command.add_argument(
        "--model", metavar="NAME", help="one of several models, or ema: the trainer's average of the weights"
    )
    command.add_argument(
        "--extra",
        nargs="+",
        type=Path,
        default=[],
        metavar="PATH",
        help="with a folder/: also copy these files, or the files in these folders, such as config.json",
    )
    command.set_defaults(command=_export)

    what = "list the tensors of a checkpoint: dtypes, shapes, files and SHA-256 digests"
    command = commands.add_parser("inspect", help=what, description=f"{what[0].upper()}{what[1:]}.")
    command.add_argument(
        "checkpoint", metavar="CHECKPOINT", type=Path, help="a checkpoint, or a run folder: its newest"
    )
    command.add_argument("--verify", action="store_true", help="read all files, and compare them with their digests")
    command.set_defaults(command=_inspect)
    return top


def _say(error: Exception) -> int:
    print(f"slipway: {error_line(error)}", file=sys.stderr)
    return code_of(error)


def _export(arguments: argparse.Namespace) -> int:
    target = Path(arguments.target)
    is_folder = arguments.target.endswith("/") or not target.suffix
    if not is_folder and target.suffix not in SUFFIXES:
        raise SlipwayError(
            "export-format",
            f"{target} must end in {', '.join(SUFFIXES)}, or in / for a folder.",
        )
    if arguments.extra and not is_folder:
        raise SlipwayError("export-format", f"--extra is for a folder, but {target} is a file.")
    _require_python()
    choice = {"best": arguments.best, "model": arguments.model}
    if is_folder:
        from slipway.checkpoint.export_folder import export_folder  # noqa: PLC0415 -- imports torch

        what = export_folder(arguments.run, target, **choice, extra=arguments.extra, progress=_progress)
    else:
        from slipway.checkpoint.export import export  # noqa: PLC0415 -- imports torch

        what = export(arguments.run, target, **choice)
    print(f"{arguments.target}: {what}")
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    _require_python()
    from slipway.checkpoint.inspection import describe  # noqa: PLC0415 -- imports torch

    for line in describe(arguments.checkpoint, is_verified=arguments.verify):
        print(line)
    return 0


def _require_python() -> None:
    if sys.version_info < OLDEST_PYTHON:
        raise SlipwayError("old-python", f"this is Python {sys.version.split()[0]}: {INSTALL_HINT}")


def _progress(text: str) -> None:
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
