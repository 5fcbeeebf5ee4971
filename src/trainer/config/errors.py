"""One-line errors for the user: what failed, where, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from slipway.base.errors import SlipwayError, did_you_mean

T = TypeVar("T")


class TrainerError(SlipwayError):
    """Training cannot continue; the message states the reason and the remedy."""


class ConfigError(TrainerError):
    """The command line, the configuration, its data or its environment is wrong."""


def choose(table: Mapping[str, T], name: str, *, what: str) -> T:
    """Return ``table[name]``; for an unknown name, raise a ConfigError with the closest choice and all valid ones."""
    if name not in table:
        raise ConfigError(
            "unknown-name", f"unknown {what} {name!r}.{did_you_mean(name, table)} Valid: {', '.join(sorted(table))}."
        )
    return table[name]
