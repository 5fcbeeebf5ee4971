"""Nested tables, such as configurations, flattened to rows of name and text."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from slipway.base.contract import CONFIG, INPUT_CONFIG
from slipway.report.files.untrusted_folder import Folder
from slipway.report.html import NOTHING


def read_config(folder: Folder) -> tuple[dict[str, str], str]:
    """Return the run's configuration by dotted key, and the file's text."""
    name = CONFIG if folder.has(CONFIG) else INPUT_CONFIG
    text = folder.text(name)
    if not text:
        return {}, ""
    try:
        return flat(tomllib.loads(text)), text
    except (ValueError, RecursionError) as error:
        folder.warn(f"{name}: not valid TOML: {error or 'nested too deeply'}")
        return {}, text


def flat(value: Any, prefix: str = "", depth: int = 0) -> dict[str, str]:
    """Return the values in nested tables as text, by dotted name."""
    if not isinstance(value, Mapping) or depth > 8:  # noqa: PLR2004 -- Slipway's own files are not that deep
        return {prefix: value if isinstance(value, str) else _short(value)}
    rows: dict[str, str] = {}
    for key, inner in value.items():
        rows |= flat(inner, f"{prefix}.{key}" if prefix else str(key), depth + 1)
    return rows


def _short(value: Any) -> str:
    match value:
        case None:
            return NOTHING
        case bool():
            return str(value).lower()
        case list():
            return " ".join(item if isinstance(item, str) else repr(item) for item in value)
        case _:
            return repr(value)
