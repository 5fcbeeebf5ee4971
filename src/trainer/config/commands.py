"""What the trainer does besides training, by the first word of its command line: ``trainer evaluate runs/mine``.

Each command is a line of ``COMMANDS``. This module loads none of them, and no torch.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from trainer.config.errors import UsageError, did_you_mean

Main = Callable[[list[str]], int]


class Command(NamedTuple):
    """One command."""

    module: str
    """Holds ``main(argv)``, which takes the words behind the command and returns the exit code."""
    usage: str
    """What follows the command."""
    summary: str
    """What it does, for ``trainer --help``."""


COMMANDS = {
    "evaluate": Command("trainer.evaluate.command", "RUN [flags]", "evaluate a checkpoint on the validation set"),
    "export": Command(
        "trainer.evaluate.export", "RUN FILE [flags]", "write the weights, with classes and normalisation, to a file"
    ),
    "make-data": Command("trainer.data.make", "SET DIR [flags]", "write a small data set for a first try: aerial"),
    "pack": Command("trainer.data.pack", "SRC DST [flags]", "write a folder of images into one file for --data-dir"),
    "report": Command("slipway.report.cli", "PATH ... [flags]", "write an HTML page about runs, studies and sweeps"),
}
"""By the word that calls them; a file of that name is trained by as ./evaluate."""


def find_command(argv: Sequence[str]) -> Main | None:
    """Return the ``main`` of the command that ``argv`` begins with; None if it begins with none.

    Raises:
        UsageError: for a first word that looks like a command, and is none, and no file either.
    """
    word = next(iter(argv), "")
    if word in COMMANDS:
        return cast("Main", importlib.import_module(COMMANDS[word].module).main)
    if re.fullmatch(r"[A-Za-z][A-Za-z-]*", word) and not os.path.lexists(word):
        raise UsageError(
            "unknown-command",
            f"{word!r} is neither a command nor a file.{did_you_mean(word, COMMANDS)} Commands: {', '.join(COMMANDS)}; "
            "without one, the trainer takes .toml files and flags (--help).",
        )
    return None


def overview() -> str:
    """Return the lines of ``trainer --help`` on the commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  trainer {name:{width}} {row.usage:16} {row.summary}" for name, row in COMMANDS.items()]
    return "\n".join(
        [
            "Commands, each with a --help of its own (write ./NAME for a file that has the name of one):",
            *lines,
        ]
    )
