"""The command line of a command: flags of its own, and some of the trainer's, which override a run's config.toml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slipway.base.contract import VERSION
from slipway.base.flags import ArgumentError, read_arguments
from trainer.config.cli import Tables, convert, exit_with
from trainer.config.commands import COMMANDS
from trainer.config.errors import UsageError
from trainer.config.schema import schema
from trainer.config.settings import Launch
from trainer.config.usage import help_text

OWN = "command"
"""The section of a command's own flags."""
LAUNCH = "launch"

SOURCE = {
    "best": {
        "flag": "--best",
        "no_flag": "--no-best",
        "type": "boolean",
        "default": False,
        "description": "The checkpoint of the run with the best validation accuracy, not the newest.",
    },
    "average": {
        "flag": "--average",
        "no_flag": "--no-average",
        "type": "boolean",
        "default": True,
        "description": "The moving average of the weights, where the run has one (--ema-decay); this is the default.",
    },
    "config": {
        "flag": "--config",
        "type": "string",
        "default": "",
        "description": "A copy of the run's config.toml, for a checkpoint that lies outside of its run folder.",
    },
}
"""Flags by which a trained model is chosen."""


class Arguments(NamedTuple):
    """What the arguments of a command say."""

    names: list[str]
    """The arguments that are no flags."""
    own: dict[str, Any]
    """The values of the command's own flags, or their defaults."""
    overrides: Tables
    """What goes before the run's config.toml."""
    launch: Launch


def read(command: str, argv: Sequence[str], own: Mapping[str, Any], taken: Mapping[str, Sequence[str]]) -> Arguments:
    """Return what ``argv`` says; exits with 0 after ``--help`` and ``--version``.

    Args:
        command: its name; the words in capitals of its usage are the arguments that are no flags.
        argv: what stands behind it.
        own: its own flags, as ``trainer.config.schema`` describes keys.
        taken: keys of the trainer's configuration, by section.

    Raises:
        UsageError: for an unknown flag, an impossible value, or not the arguments that the command takes.
    """
    flags, names = _schema(own, taken), [word for word in COMMANDS[command].usage.split() if word.isupper()]
    try:
        found = read_arguments(argv, flags, names=names)
    except ArgumentError as error:
        raise UsageError(error.slug, f"{command}: {error}") from error
    match found.request:
        case "help":
            exit_with(_help(command, flags))
        case "version":
            exit_with(f"slipway {VERSION}\n")
        case "print-config":
            raise UsageError(
                "flag-conflict", f"{command}: --print-config is of training; config.toml in the run folder has it."
            )
    if missing := names[len(found.files) :]:
        raise UsageError(
            "missing-argument",
            f"{command}: {' and '.join(missing)} missing: trainer {command} {COMMANDS[command].usage}",
        )
    values = {key: row["default"] for key, row in own.items()} | found.tables.pop(OWN, {})
    launch = convert({LAUNCH: found.tables.pop(LAUNCH, {})}).launch
    return Arguments(found.files, values, found.tables, launch)


def _schema(own: Mapping[str, Any], taken: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the schema of a command; keys of the run have no default, as its config.toml says their values."""
    sections: dict[str, Any] = {OWN: {"description": "What is read and written.", "properties": dict(own)}}
    for section, keys in taken.items():
        table = schema()["properties"][section]
        rows = {key: table["properties"][key] for key in keys}
        if section != LAUNCH:
            rows = {key: {**row, "default": ""} for key, row in rows.items()}
            table = {**table, "description": f"In place of what the run has in its config.toml, [{section}]."}
        sections[section] = {**table, "properties": rows}
    return {"properties": sections}


def _help(command: str, flags: Mapping[str, Any]) -> str:
    row = COMMANDS[command]
    of_run = " RUN is a run folder, or one checkpoint of it; nothing in it is locked or changed."
    return help_text(
        flags,
        prog=f"trainer {command}",
        usage=f"trainer {command} {row.usage}",
        description=f"{row.summary[0].upper()}{row.summary[1:]}.{of_run if 'RUN' in row.usage.split() else ''}",
    )
