"""From the command line and a TOML file to one valid Config."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import tyro

from slipway.flags import argument_error
from trainer.config import Config
from trainer.errors import ConfigError, UsageError, did_you_mean
from trainer.schema import schema

ConfigPath = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CONFIG.toml")]


@dataclasses.dataclass(frozen=True)
class Arguments:
    """Train an image classifier; flags override the keys of the same name in CONFIG.toml."""

    path: ConfigPath = ""
    """What to train and how (see configs/); without one, the defaults below."""
    config: Config = dataclasses.field(default_factory=Config)


def parse(argv: list[str]) -> Config:
    """Read the file that ``argv`` names, then let the flags of ``argv`` override it.

    Exits with 0 after ``--help``.

    Raises:
        UsageError: for an unknown flag, or an impossible value of one.
        ConfigError: for a file that is missing, not TOML, or holds an unknown key or an impossible value.
    """
    if mistake := argument_error(argv, schema()):
        raise UsageError(mistake)
    path = _arguments(argv, Arguments()).path
    defaults = Arguments(path, load(Path(path)) if path else Config())
    config = _arguments(argv, defaults).config
    try:
        return _convert(msgspec.to_builtins(config))
    except ConfigError as error:  # the file was valid, so a flag is at fault
        raise UsageError(str(error)) from error


def load(path: Path) -> Config:
    """Return the configuration that the TOML file ``path`` describes (missing keys keep their defaults)."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}. See configs/ for some.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    try:
        return _convert(table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _arguments(argv: list[str], default: Arguments) -> Arguments:
    return tyro.cli(Arguments, prog="trainer", args=argv, default=default, config=(tyro.conf.OmitArgPrefixes,))


def _convert(table: dict[str, Any]) -> Config:
    """Check keys, types and values of nested tables and return the Config they spell."""
    _refuse_unknown(table, Config, where="")
    try:
        return msgspec.convert(table, Config)
    except msgspec.ValidationError as error:
        reason, _, location = str(error).partition(" - at `$.")
        section, _, name = location.rstrip("`").partition(".")
        raise ConfigError(f"{section}.{name}: {_in_words(reason, section, name)}") from error


def _refuse_unknown(table: dict[str, Any], cls: type, *, where: str) -> None:
    hints = get_type_hints(cls)
    for key, value in table.items():
        if key not in hints:
            kind = f"key in [{where}]" if where else "section"
            if key in (sections := _sections()):
                raise ConfigError(f"unknown {kind}: {key!r} belongs into [{sections[key]}].")
            raise ConfigError(f"unknown {kind}: {key!r}.{did_you_mean(key, hints)} Valid: {', '.join(hints)}.")
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, dict):
                raise ConfigError(f"{key!r} is a section: write [{key}] and its keys below it.")
            _refuse_unknown(value, hints[key], where=key)


def _sections() -> dict[str, str]:
    """Return the section of each key."""
    return {key: section for section, cls in get_type_hints(Config).items() for key in get_type_hints(cls)}


def _in_words(reason: str, section: str, name: str) -> str:
    """Add the valid choices to msgspec's text for an invalid enum value, or one that matches no pattern."""
    hint = get_type_hints(get_type_hints(Config)[section], include_extras=True)[name.partition("[")[0]]
    if "matching regex" in reason:
        return f"it must be one of {', '.join(hint.__metadata__[0].examples)}."
    if not (found := re.match(r"Invalid enum value '?([^']*)'?", reason)):
        return reason + "."
    choices = get_args(hint)
    return f"{found[1]!r} is not one of {', '.join(choices)}.{did_you_mean(found[1], choices)}"
