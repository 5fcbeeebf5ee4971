"""A script with the library inside: what ``jobgen render --standalone`` writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

from jobgen.base.paths import data_folder

SOURCE = re.compile(r'^source "(?:\$lib|\$\{BASH_SOURCE\[0\]%/\*\})/(\w+\.bash)"$')
FIND_LIBRARY = re.compile(r"# The script library, with the functions.*?^(?=source )", flags=re.DOTALL | re.MULTILINE)
HEAD = "# The script library, jobscripts/lib, is inside this script. The job's own calls are after it."
HELPERS = ("*.py", "*.sh", "*_run.bash", "rank_loop.bash", "stage.bash")
"""Files that nodes run by path: the script writes them into the run folder."""


def with_library(text: str) -> str:
    """Return the script ``text`` with every ``source`` of a file of the library replaced by that file."""
    folder = data_folder("jobscripts", "lib")
    text = FIND_LIBRARY.sub(f"{HEAD}\nlib=''\n", text)
    lines: List[str] = []
    end = 0
    for line in text.splitlines():
        lines += _included(line, folder)
        if SOURCE.match(line):
            end = len(lines)
    lines[end:end] = [*_helpers(folder), "# --- end of the library ---"]
    return "\n".join(lines)


def _included(line: str, folder: Path) -> List[str]:
    """Return ``line``, or the lines of the library that it sources."""
    found = SOURCE.match(line)
    if not found:
        return [line]
    lines = [f"# --- jobscripts/lib/{found[1]} ---"]
    for inner in (folder / found[1]).read_text(encoding="utf-8").splitlines():
        lines += _included(inner, folder)
    return lines


def _helpers(folder: Path) -> List[str]:
    """Return a function that writes the helpers, in place of the one that copies the library."""
    paths = sorted(path for pattern in HELPERS for path in folder.glob(pattern))
    lines = [
        "# copy_library FOLDER: the helpers of the library, which are inside this script.",
        "copy_library() {",
        '    mkdir -- "$1"',
    ]
    for path in paths:
        end = f"END_OF_{path.name.upper().replace('.', '_')}"
        lines += [f"    cat >\"$1/{path.name}\" <<'{end}'", *path.read_text(encoding="utf-8").splitlines(), end]
    return [*lines, "}"]
