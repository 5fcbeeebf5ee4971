"""The templates: Bash with @{slots}, and no logic."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict

TEMPLATES = Path(__file__).parent / "templates"
SLOT = re.compile(r"@\{(\w+)\}")


def fill(name: str, slots: Dict[str, str]) -> str:
    """Return the template ``name`` with its slots filled, or "" where there is none of that name.

    A line that holds only an empty slot goes.
    """
    path, lines = TEMPLATES / f"{name}.bash", []
    if not path.exists():
        return ""
    for line in path.read_text(encoding="utf-8").splitlines():
        filled = SLOT.sub(lambda slot: slots[slot[1]], line)
        if filled or not line:
            lines.append(filled)
    return "\n".join(lines)
