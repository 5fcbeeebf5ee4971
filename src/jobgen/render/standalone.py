"""Standalone scripts, which include the script library: ``jobgen render --standalone``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

from jobgen.base.paths import data_folder

SOURCE = re.compile(r'(?m)^source "(?:\$lib|\$\{BASH_SOURCE\[0\]%/\*\})/(\w+\.bash)"$')
FIND_LIBRARY = re.compile(r"(?ms)# The script library, with the functions.*?^(?=source )")
HEAD = "# The script library, jobscripts/lib, is inside this script. The job's own calls are after it."
HELPERS = ("*.py", "*.sh", "*_run.bash", "rank_loop.bash", "stage.bash")
"""Files that nodes run by path; the script writes them to the run folder."""


def with_library(text: str) -> str:
    """Return the script ``text`` with each ``source`` of a library file replaced by the file."""
    folder = data_folder("jobscripts", "lib")
    text = FIND_LIBRARY.sub(f"{HEAD}\nlib=''\n", text)
    end = max(found.end() for found in SOURCE.finditer(text))
    return "\n".join([_included(text[:end], folder), *_helpers(folder), f"# --- end of the library ---{text[end:]}"])


def _included(text: str, folder: Path) -> str:
    """Return ``text`` with each library file in place of the line that sources it."""

    def included(found: re.Match[str]) -> str:
        library = (folder / found[1]).read_text(encoding="utf-8").removesuffix("\n")
        return f"# --- jobscripts/lib/{found[1]} ---\n{_included(library, folder)}"

    return SOURCE.sub(included, text)


def _helpers(folder: Path) -> List[str]:
    """Return a Bash function that writes the helpers; it replaces the one that copies the library."""
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
