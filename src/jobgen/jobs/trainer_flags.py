"""The trainer's flags as a login node knows them, to refuse a mistyped one before a job waits in a queue for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Set

from jobgen.base.errors import JobgenError
from jobgen.base.paths import CHECKOUT, PACKAGED
from slipway.base.flags import ArgumentError, nearest_flag, read_arguments, switch_words

__all__ = ["ArgumentError", "keys_of", "load_schema", "nearest_flag", "read_arguments", "switch_words"]

SCHEMA = Path("configs") / "schema.json"
TITLE = "CONFIG.toml of the trainer"
"""Title of the trainer's schema; a schema.json of another project has another one."""


def load_schema() -> Dict[str, Any]:
    """Return what ``trainer.config.schema`` wrote: from the working directory if it is a clone, else from this package.

    Raises:
        JobgenError: if neither has it.
    """
    for folder in (Path(), PACKAGED, CHECKOUT):
        try:
            schema = json.loads((folder / SCHEMA).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(schema, dict) and schema.get("title") == TITLE:
            return schema
    raise JobgenError(
        "incomplete-install", f"no {SCHEMA} in this folder, and none in {PACKAGED}: install slipway again."
    )


def keys_of(arguments: List[str], schema: Mapping[str, Any]) -> Set[str]:
    """Return the keys that ``arguments`` of the trainer set, as train.epochs; none if they cannot be understood."""
    try:
        tables = read_arguments(arguments, schema).tables
    except ArgumentError:  # said where the job is prepared
        return set()
    return {f"{section}.{name}" for section, table in tables.items() for name in table}
