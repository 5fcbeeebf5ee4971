"""The trainer's flags from its JSON schema, to reject a mistyped flag before the job is submitted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping, Set

from jobgen.base.errors import JobgenError
from jobgen.base.paths import CHECKOUT, PACKAGED
from slipway.base.flags import ArgumentError, read_arguments

SCHEMA = Path("configs") / "schema.json"
TITLE = "CONFIG.toml of the trainer"
"""Title in the trainer's schema, which distinguishes it from another project's schema.json."""


def load_schema() -> Dict[str, Any]:
    """Return the trainer's configuration schema: from the current folder if it is a clone, else the packaged one.

    Raises:
        JobgenError: if neither exists.
    """
    for folder in (Path(), PACKAGED, CHECKOUT):
        try:
            schema = json.loads((folder / SCHEMA).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(schema, dict) and schema.get("title") == TITLE:
            return schema
    raise JobgenError("incomplete-install", f"{SCHEMA} is missing in this folder and in {PACKAGED}: reinstall slipway.")


def keys_of(arguments: List[str], schema: Mapping[str, Any]) -> Set[str]:
    """Return the configuration keys (such as train.epochs) that the trainer's ``arguments`` set; empty if invalid."""
    try:
        tables = read_arguments(arguments, schema).tables
    except ArgumentError:  # reported when the job is prepared
        return set()
    return {f"{section}.{name}" for section, table in tables.items() for name in table}
