"""The trainer's commands besides training, selected by the first word: ``trainer evaluate runs/mine``.

``COMMANDS`` lists them. This module imports neither the commands nor torch.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from slipway.base.errors import did_you_mean
from trainer.config.errors import ConfigError

Main = Callable[[list[str]], int]


class Command(NamedTuple):
    """A command of the trainer."""

    module: str
    """The module with ``main(argv)``, which takes the arguments after the command and returns the exit code."""
    usage: str
    """The arguments after the command, for the usage line."""
    summary: str
    """One-line description for ``trainer --help``."""


COMMANDS = {
    "evaluate": Command("trainer.evaluate.command", "RUN [flags]", "evaluate a checkpoint on the validation set"),
    "export": Command(
        "trainer.evaluate.export", "RUN FILE [flags]", "write weights, class names and normalization to a file"
    ),
    "make-data": Command("trainer.data.make", "SET DIR [flags]", "write a small data set for a first try: aerial"),
    "pack": Command("trainer.data.pack", "SRC DST [flags]", "pack a folder of images into one file for --data-dir"),
    "report": Command("slipway.report.cli", "PATH ... [flags]", "write an HTML page about runs, studies and sweeps"),
}
"""Commands by name. To train from a configuration file with such a name, write ./evaluate."""


def find_command(argv: Sequence[str]) -> Main | None:
    """Return the ``main`` of the command that ``argv`` begins with; None if the first word is not a command.

    Raises:
        ConfigError: if the first word looks like a command but is neither a command nor a file.
    """
    word = next(iter(argv), "")
    if word in COMMANDS:
        return cast("Main", importlib.import_module(COMMANDS[word].module).main)
    if re.fullmatch(r"[A-Za-z][A-Za-z-]*", word) and not os.path.lexists(word):
        raise ConfigError(
            "unknown-command",
            f"{word!r} is neither a command nor a file.{did_you_mean(word, COMMANDS)} Commands: {', '.join(COMMANDS)}. "
            "To train, pass .toml files and flags (see --help).",
        )
    return None


def overview() -> str:
    """Return the lines of ``trainer --help`` that list the commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  trainer {name:{width}} {row.usage:16} {row.summary}" for name, row in COMMANDS.items()]
    return "\n".join(
        [
            "Commands, each with its own --help (for a file with the name of a command, write ./NAME):",
            *lines,
        ]
    )
