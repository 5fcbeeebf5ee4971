"""Command line of a trainer command: its own flags, and trainer flags that override the run's config.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slipway.base.contract import VERSION
from slipway.base.flags import ArgumentError, read_arguments
from trainer.config.cli import Tables, convert, exit_with
from trainer.config.commands import COMMANDS
from trainer.config.errors import ConfigError
from trainer.config.schema import schema
from trainer.config.settings import Launch
from trainer.config.usage import help_text

OWN = "command"
"""The section of the command's own flags."""
LAUNCH = "launch"

SOURCE = {
    "best": {
        "flag": "--best",
        "no_flag": "--no-best",
        "type": "boolean",
        "default": False,
        "description": "Use the checkpoint with the best validation accuracy instead of the newest.",
    },
    "average": {
        "flag": "--average",
        "no_flag": "--no-average",
        "type": "boolean",
        "default": True,
        "description": "Use the moving average of the weights if the run has one (--ema-decay); this is the default.",
    },
    "config": {
        "flag": "--config",
        "type": "string",
        "default": "",
        "description": "A copy of the run's config.toml, for a checkpoint outside its run folder.",
    },
}
"""Flags that select a trained model."""


class Arguments(NamedTuple):
    """Parsed arguments of a command."""

    names: list[str]
    """The positional arguments."""
    own: dict[str, Any]
    """The values of the command's own flags, or their defaults."""
    overrides: Tables
    """Values that override the run's config.toml."""
    launch: Launch


def read(command: str, argv: Sequence[str], own: Mapping[str, Any], taken: Mapping[str, Sequence[str]]) -> Arguments:
    """Parse ``argv``; exit with 0 after ``--help`` and ``--version``.

    Args:
        command: the command's name. The words in capitals in its usage are the positional arguments.
        argv: the arguments after the command.
        own: the command's own flags, described as in ``trainer.config.schema``.
        taken: keys of the trainer's configuration that the command accepts, by section.

    Raises:
        ConfigError: for an unknown flag, an invalid value, or missing or surplus positional arguments.
    """
    flags, names = command_schema(own, taken), [word for word in COMMANDS[command].usage.split() if word.isupper()]
    try:
        found = read_arguments(argv, flags, names=names)
    except ArgumentError as error:
        raise ConfigError(error.slug, f"{command}: {error}") from error
    match found.request:
        case "help":
            exit_with(_help(command, flags))
        case "version":
            exit_with(f"slipway {VERSION}\n")
        case "print-config":
            raise ConfigError(
                "flag-conflict",
                f"{command}: --print-config is a flag of training; read config.toml in the run folder instead.",
            )
    if missing := names[len(found.files) :]:
        raise ConfigError(
            "missing-argument",
            f"{command}: {' and '.join(missing)} missing. Usage: trainer {command} {COMMANDS[command].usage}",
        )
    values = {key: row["default"] for key, row in own.items()} | found.tables.pop(OWN, {})
    launch = convert({LAUNCH: found.tables.pop(LAUNCH, {})}).launch
    return Arguments(found.files, values, found.tables, launch)


def command_schema(own: Mapping[str, Any], taken: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the schema of a command. Keys of the run have no default because its config.toml holds their values."""
    sections: dict[str, Any] = {OWN: {"description": "Input and output.", "properties": dict(own)}}
    for section, keys in taken.items():
        table = schema()["properties"][section]
        rows = {key: table["properties"][key] for key in keys}
        if section != LAUNCH:
            rows = {key: {**row, "default": ""} for key, row in rows.items()}
            table = {**table, "description": f"Overrides of the run's config.toml, section [{section}]."}
        sections[section] = {**table, "properties": rows}
    return {"properties": sections}


def description(command: str) -> str:
    """Return the description of a command for its ``--help``."""
    row = COMMANDS[command]
    of_run = " RUN is a run folder or one of its checkpoints; the command neither locks nor changes it."
    return f"{row.summary[0].upper()}{row.summary[1:]}.{of_run if 'RUN' in row.usage.split() else ''}"


def _help(command: str, flags: Mapping[str, Any]) -> str:
    return help_text(
        flags,
        prog=f"trainer {command}",
        usage=f"trainer {command} {COMMANDS[command].usage}",
        description=description(command),
    )
