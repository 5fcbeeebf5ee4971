"""Parsing of the command line and TOML files into validated Settings."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import msgspec

from slipway.base.bounded_read import read_head
from slipway.base.contract import VERSION
from slipway.base.errors import did_you_mean
from slipway.base.flags import ArgumentError, read_arguments
from slipway.base.third_party_errors import InvalidValue, invalid_choice, invalid_value, is_pattern_mismatch
from trainer.config.commands import overview
from trainer.config.errors import ConfigError
from trainer.config.schema import schema
from trainer.config.settings import ALTERNATIVES, Settings, experiment
from trainer.config.usage import help_text

Tables = dict[str, dict[str, Any]]
"""Values by section and key."""


def parse(argv: Sequence[str]) -> Settings:
    """Return the settings of ``argv``: each file overrides the files before it, and flags override all files.

    Exits with 0 after ``--help``, ``--version`` and ``--print-config``.

    Raises:
        ConfigError: for an unknown flag or an invalid value of a flag, and for a file that is missing, is not TOML, or
            holds an unknown key or an invalid value.
    """
    if not argv:
        raise ConfigError(
            "missing-argument", "nothing to train: pass a CONFIG.toml (examples: configs/) or flags (see --help)."
        )
    try:
        arguments = read_arguments(argv, schema())
    except ArgumentError as error:
        raise ConfigError(error.slug, str(error)) from error
    match arguments.request:
        case "help":
            exit_with(_help())
        case "version":
            exit_with(f"slipway {VERSION}\n")
    files = [_read_tables(Path(path)) for path in arguments.files]
    try:
        settings = convert(_merge([*files, arguments.tables]))
    except ConfigError as error:  # the files were valid, so a flag is at fault
        slug = "flag-conflict" if error.slug == "conflicting-settings" else "bad-flag-value"
        raise ConfigError(slug, str(error)) from error
    if arguments.request == "print-config":
        import tomli_w  # noqa: PLC0415 -- not in the base install, in which the rest of this module works

        exit_with(tomli_w.dumps(experiment(settings)))
    return settings


def load(path: Path, overrides: Tables | None = None) -> Settings:
    """Return the settings in the TOML file ``path``; missing keys keep their defaults.

    Args:
        path: the file.
        overrides: values that override the file's, by section and key.

    Raises:
        ConfigError: as ``parse`` does.
    """
    return convert(_merge([_read_tables(path), overrides or {}]))


def _help() -> str:
    """Return the text of ``trainer --help``."""
    return help_text(
        schema(),
        prog="trainer",
        usage="trainer [CONFIG.toml [OVERLAY.toml ...]] [flags]",
        description="Train an image classifier. Flags override keys of the same name in the files; each file overrides "
        "the files before it. --print-config prints the resulting configuration, --version the version.",
        epilog=overview(),
    )


def exit_with(text: str) -> NoReturn:
    """Write ``text`` to stdout and exit with 0."""
    sys.stdout.write(text)
    sys.exit(0)


def _read_tables(path: Path) -> Tables:
    """Return the tables of the TOML file ``path``, after validating this file alone."""
    try:
        text = read_head(path, limit=LARGEST + 1)
        if len(text) > LARGEST:
            raise ConfigError("bad-toml", f"{path} has more than {LARGEST} bytes: it is not a configuration.")
        tables = tomllib.loads(text.decode())
    except OSError as error:
        raise ConfigError(
            "cannot-read", f"cannot read the configuration {path}: {error.strerror}. configs/ holds examples."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError("bad-toml", f"{path} is not valid TOML: {error}.") from error
    try:
        _reject_unknown(tables)
        convert(_merge([tables]))
    except ConfigError as error:
        raise ConfigError(error.slug, f"{path}: {error}") from None
    return tables


LARGEST = 1 << 20
"""Maximum size of a configuration file in bytes."""


def _merge(layers: Sequence[Tables]) -> Tables:
    """Return the merged tables; each layer overrides the layers before it.

    Raises:
        ConfigError: if a layer sets two mutually exclusive keys.
    """
    merged: Tables = {}
    for layer in layers:
        for name, table in layer.items():
            into = merged.setdefault(name, {})
            for section, *keys in ALTERNATIVES:
                given = [key for key in keys if section == name and table.get(key)]
                if len(given) > 1:
                    flags = " and ".join(f"--{key.replace('_', '-')}" for key in given)
                    raise ConfigError("conflicting-settings", f"{flags} are alternatives: set only one of them.")
                for key in keys if given else ():
                    into.pop(key, None)
            into |= table
    return merged


def convert(tables: Tables) -> Settings:
    """Validate the tables and return them as Settings; missing keys get their defaults.

    Raises:
        ConfigError: for an invalid value.
    """
    given = {section: _without_disabled(section, table) for section, table in tables.items()}
    try:
        return msgspec.convert(given, Settings)
    except msgspec.ValidationError as error:
        found = invalid_value(error)
        raise ConfigError("bad-value", f"{found.section}.{found.key}: {_with_choices(found)}") from error


def _without_disabled(section: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return ``table`` without the options that 0 or "" turns off."""
    hints = get_type_hints(get_type_hints(Settings)[section])
    return {
        key: value
        for key, value in table.items()
        if not (NoneType in get_args(hints[key]) and value in (0, "") and value is not False)
    }


def _reject_unknown(tables: dict[str, Any]) -> None:
    """Raise a ConfigError for a section or a key that does not exist."""
    sections = get_type_hints(Settings)
    homes = {key: section for section, cls in sections.items() for key in get_type_hints(cls)}
    for section, table in tables.items():
        if section not in sections:
            _refuse(section, "section", sections, homes)
        if not isinstance(table, dict):
            raise ConfigError("unknown-key", f"{section!r} is a section: write [{section}] with its keys below it.")
        for key in table:
            if key not in (hints := get_type_hints(sections[section])):
                _refuse(key, f"key in [{section}]", hints, homes)


def _refuse(name: str, kind: str, valid: dict[str, Any], homes: dict[str, str]) -> None:
    if name in homes:
        raise ConfigError("unknown-key", f"unknown {kind}: {name!r} belongs in [{homes[name]}].")
    raise ConfigError("unknown-key", f"unknown {kind}: {name!r}.{did_you_mean(name, valid)} Valid: {', '.join(valid)}.")


def _with_choices(found: InvalidValue) -> str:
    """Return the reason why a value is invalid, with the valid choices if there are any."""
    hint = get_type_hints(get_type_hints(Settings)[found.section], include_extras=True)[found.key.partition("[")[0]]
    if is_pattern_mismatch(found.reason):
        return f"it must be one of {', '.join(hint.__metadata__[0].examples)}."
    if (value := invalid_choice(found.reason)) is None:
        return "it must be true, false or auto." if bool in get_args(hint) else found.reason + "."
    choices = [choice for part in (hint, *get_args(hint)) if get_origin(part) is Literal for choice in get_args(part)]
    others = "true, false, " if bool in get_args(hint) else "a number, " if get_origin(hint) is not Literal else ""
    return f"{value!r} is not one of {others}{', '.join(choices)}.{did_you_mean(value, choices)}"
