"""Templates: Bash or text with @{placeholders}, without logic."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict

from jobgen.base.errors import JobgenError
from slipway.base.errors import did_you_mean

TEMPLATES = Path(__file__).parent / "templates"
PLACEHOLDER = re.compile(r"@\{(\w*)\}")


def fill(name: str, values: Dict[str, str]) -> str:
    """Return the template ``name`` with its placeholders filled.

    A line that holds only an empty placeholder goes.

    Raises:
        JobgenError: if there is no such template, or it has a placeholder that ``values`` lacks.
    """
    path, lines = TEMPLATES / name, []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise JobgenError("cannot-read", f"cannot read the template {path}: {error.strerror}.") from error
    for line in text.splitlines():
        for placeholder in PLACEHOLDER.findall(line):
            if placeholder not in values:
                raise JobgenError(
                    "incomplete-install",
                    f"{path}: no placeholder @{{{placeholder}}}.{did_you_mean(placeholder, list(values))}",
                )
        filled = PLACEHOLDER.sub(lambda found: values[found[1]], line)
        if filled or not line:
            lines.append(filled)
    return "\n".join(lines)
