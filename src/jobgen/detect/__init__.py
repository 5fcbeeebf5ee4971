"""``jobgen site --detect``: draft a site file from commands and files of a login node.

Each value has its source as a comment; undetected values become questions. Detection does not submit jobs or change
anything. If a command is missing, fails, hangs or prints invalid output, only its values are missing.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import List, NamedTuple, Optional

from jobgen.base.errors import JobgenError, UsageError, note
from jobgen.detect.ask import Asker
from jobgen.detect.draft import Draft, Found
from jobgen.detect.machine import draft_machine
from jobgen.detect.pbs.facts import read_version
from jobgen.detect.pbs.site import ask_launcher, draft_pbs
from jobgen.detect.slurm.facts import read_config
from jobgen.detect.slurm.site import draft_slurm
from jobgen.detect.workstation import draft_single_machine


def write_draft(*, name: Optional[str], output: Optional[str]) -> int:
    """Write the draft to the file ``output`` or to standard output, and print a summary.

    Raises:
        JobgenError: if the file exists (it may contain the user's answers) or cannot be written.
    """
    if name is not None and not (name.strip() and name.isprintable()):
        raise UsageError("bad-flag-value", f"--name {name[:60]!r}: the name must be printable text.")
    path = Path(output) if output else None
    if path and os.path.lexists(path):
        raise JobgenError(
            "file-exists", f"{path} exists and may contain your answers: choose another file, or remove it."
        )
    draft = detect(name)
    if path:
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(draft.text)
        except OSError as error:
            raise JobgenError("cannot-write", f"cannot write {path}: {error.strerror}.") from error
    else:
        sys.stdout.write(draft.text)
    where = f" in {path}" if path else ""
    note(f"{len(draft.found)} values detected; open questions{where}: {', '.join(draft.asked) or 'none'}")
    return 0


class Detected(NamedTuple):
    """A draft and its keys."""

    text: str
    found: List[str]
    """Keys with a detected value."""
    asked: List[str]
    """Keys with an open question."""


def detect(name: Optional[str] = None) -> Detected:
    """Return the draft of a site file for this machine's cluster; ``name`` overrides the detected name.

    Raises:
        JobgenError: if the cluster has a scheduler that jobgen does not support.
    """
    draft, asker = Draft(), Asker(os.environ)
    if name is not None:
        draft.found["name"] = Found(name, "--name")
    config = read_config(asker) if shutil.which("scontrol") else {}
    pbs = read_version(asker) if not config and shutil.which("qstat") else ""
    has_pyxis, command = False, "submit --dry-run ddp"
    if config or (shutil.which("sbatch") and not pbs):
        has_pyxis = draft_slurm(draft, asker, config)
    elif pbs:
        draft_pbs(draft, asker, pbs)
    else:
        draft_single_machine(draft, asker)
        command = "render ddp-local"
    draft_machine(draft, asker, has_pyxis=has_pyxis)
    if pbs:
        ask_launcher(draft)
    for answer in asker.failed:
        draft.note(f"Command failed: {answer.command}: {answer.error}.")
    head = [
        f"Draft by `jobgen site --detect` on {platform.node()}; the comment of each value is its source.",
        f"Answer the questions, then test with `jobgen {command} --site FILE`. docs/sites.md explains the fields.",
    ]
    return Detected(draft.text(*head), list(draft.found), list(draft.questions))
