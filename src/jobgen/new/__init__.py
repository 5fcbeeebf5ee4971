"""``jobgen new``: create a folder with a training script that can be stopped and continued, to be adapted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from jobgen.base.errors import JobgenError, UsageError, note, say

TEMPLATES = Path(__file__).parent / "templates"
FRAMEWORKS = {
    "ddp": "DistributedDataParallel and `slipway.Session`",
    "lightning": "Lightning's Trainer and `slipway.lightning.SlipwayCallback`",
    "accelerate": "Accelerate and `slipway.Session`",
    "transformers": "a model of Hugging Face transformers, DistributedDataParallel and `slipway.Session`",
}
"""Folders of ``templates``, and with what the script in each trains."""
FILES = ("train.py", "requirements.txt")
"""Files that are copied; the second one exists if more than torch and slipway is needed."""
REQUIRED = "Install what it imports besides torch and slipway: `pip install -r requirements.txt`.\n\n"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
"""Pattern of the folder's own name."""


def create(path: str, framework: str) -> int:
    """Create the folder ``path`` with a script for ``framework``, print the next two commands, and return 0.

    Raises:
        UsageError: if the folder's name is invalid.
        JobgenError: if ``path`` exists and is not an empty folder, or cannot be written.
    """
    folder = Path(path)
    if not (re.fullmatch(NAME, folder.name) and path.isprintable()):
        raise UsageError(
            "bad-flag-value",
            f"NAME {path[:80]!r}: a folder's name must start with a letter or digit and have at most 64 letters, "
            "digits, dots, dashes and underscores.",
        )
    try:
        if folder.exists() and not (folder.is_dir() and next(folder.iterdir(), None) is None):
            raise JobgenError("file-exists", f"{folder} exists and is not an empty folder: choose another name.")
        _write(folder, framework)
    except OSError as error:
        raise JobgenError("cannot-write", f"cannot write {folder}: {error.strerror}.") from error
    note(f"{folder} contains {', '.join(sorted(file.name for file in folder.iterdir()))}; continue with:")
    say(f"cd {shlex.quote(str(folder))}")
    say("jobgen run train.py")
    return 0


def _write(folder: Path, framework: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files = [file for name in FILES if (file := TEMPLATES / framework / name).exists()]
    for file in files:
        (folder / file.name).write_bytes(file.read_bytes())
    readme = (TEMPLATES / "README.md").read_text(encoding="utf-8")
    required = REQUIRED if len(files) == len(FILES) else ""
    parts = {"name": folder.name, "framework": FRAMEWORKS[framework], "required": required}
    for name, text in parts.items():
        readme = readme.replace(f"@{{{name}}}", text)
    (folder / "README.md").write_text(readme, encoding="utf-8")
