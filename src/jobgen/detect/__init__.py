"""``jobgen site --detect``: draft a site file from commands and files of a login node.

Each value has its source as a comment; undetected values become questions. Detection does not submit jobs or change
anything. If a command is missing, fails, hangs or prints invalid output, only its values are missing.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import List, NamedTuple, Optional

from jobgen.base.errors import JobgenError, UsageError, note
from jobgen.base.job import Site
from jobgen.detect.ask import Asker
from jobgen.detect.draft import Draft, Found
from jobgen.detect.machine import draft_machine
from jobgen.detect.pbs.facts import read_version
from jobgen.detect.pbs.site import ask_launcher, draft_pbs
from jobgen.detect.questions import ask_questions, confirm, is_at_terminal, take_candidates
from jobgen.detect.slurm.facts import read_config
from jobgen.detect.slurm.site import draft_slurm
from jobgen.detect.workstation import draft_single_machine
from jobgen.resolve.load import load
from jobgen.resolve.search import DEFAULT, user_folder

PARTITION = "options.partition"
"""Key whose answer changes the detected values of other keys: those of its nodes."""


def write_draft(*, name: Optional[str], output: Optional[str]) -> int:
    """Write the draft to the file ``output`` or to standard output, and print a summary.

    Raises:
        JobgenError: if the file exists (it may contain the user's answers) or cannot be written.
    """
    path = Path(output) if output else None
    if path:
        _refuse_existing(path)
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


def save_default_draft(*, name: Optional[str], yes: bool) -> Path:
    """Detect the site, ask its open questions, print the file, and save it as the user's default site.

    Args:
        name: the site's name; None: the detected one.
        yes: whether to ask nothing, take the candidates, and leave other fields without a value out.

    Returns:
        The file, which is then what ``default_site`` finds.

    Raises:
        JobgenError: if the user has a default site, there is no terminal to ask at, the user does not confirm, or the
            file cannot be written.
    """
    path = user_folder(os.environ) / f"{DEFAULT}.toml"
    if not path.is_absolute():  # this user has no home folder
        raise JobgenError("cannot-write", f"cannot write {path}: set HOME or XDG_CONFIG_HOME to an absolute path.")
    _refuse_existing(path)
    if not (yes or is_at_terminal()):
        raise JobgenError(
            "site-not-saved",
            "no terminal to ask at: run `jobgen site --detect --save` at one, or add --yes to save what is detected.",
        )
    found = detect(name)
    if yes:
        take_candidates(found.draft)
    else:
        found = _ask(found, name)
    text = found.text
    sys.stdout.write(text)
    sys.stdout.flush()
    if not (yes or confirm(f"Save it as {path}?")):
        raise JobgenError("site-not-saved", "not confirmed: nothing was saved.")
    _save(path, text)
    unanswered = f"; open questions in it: {', '.join(found.asked) or 'none'}" if yes else ""
    note(f"saved {path}, your default site{unanswered}")
    return path


class Detected(NamedTuple):
    """A draft, and the answers that it comes from."""

    draft: Draft
    asker: Asker

    @property
    def text(self) -> str:
        """The site file."""
        return self.draft.text(
            f"Draft by `jobgen site --detect` on {platform.node()}; the comment of each value is its source.",
            "Answer the questions, then test with `jobgen run --dry-run SCRIPT --site FILE`. "
            "docs/reference/site.md explains the fields.",
        )

    @property
    def found(self) -> List[str]:
        """Keys with a value."""
        return list(self.draft.found)

    @property
    def asked(self) -> List[str]:
        """Keys with an open question."""
        return list(self.draft.questions)


def detect(name: Optional[str] = None, *, partition: str = "", asker: Optional[Asker] = None) -> Detected:
    """Return the draft of a site file for this machine's cluster.

    Args:
        name: the site's name; None: the detected one.
        partition: the Slurm partition of GPU jobs; "": the best one.
        asker: its answers are used again; None: a new one.

    Raises:
        JobgenError: if the cluster has a scheduler that jobgen does not support.
    """
    if name is not None and not (name.strip() and name.isprintable()):
        raise UsageError("bad-flag-value", f"--name {name[:60]!r}: the name must be printable text.")
    draft, asker = Draft(), asker or Asker(os.environ)
    if name is not None:
        draft.found["name"] = Found(name, "--name")
    config = read_config(asker) if shutil.which("scontrol") else {}
    pbs = read_version(asker) if not config and shutil.which("qstat") else ""
    has_pyxis = False
    if config or (shutil.which("sbatch") and not pbs):
        has_pyxis = draft_slurm(draft, asker, config, partition=partition)
    elif pbs:
        draft_pbs(draft, asker, pbs)
    else:
        draft_single_machine(draft, asker)
    draft_machine(draft, asker, has_pyxis=has_pyxis)
    if pbs:
        ask_launcher(draft)
    for answer in asker.failed:
        draft.note(f"Command failed: {answer.command}: {answer.error}.")
    return Detected(draft, asker)


def _ask(found: Detected, name: Optional[str]) -> Detected:
    """Ask the open questions, first that for the partition, and detect the values of another one's nodes."""
    note("questions about this cluster: Enter accepts what is in brackets")
    before = found.draft.found.get(PARTITION)
    ask_questions(found.draft, [PARTITION])
    chosen = found.draft.found.get(PARTITION)
    if before and chosen and chosen.value != before.value:
        found = detect(name, partition=str(chosen.value), asker=found.asker)
        question = next(question for key, question in found.draft.open_questions() if key == PARTITION)
        found.draft.answer(PARTITION, question, chosen.value, chosen.source)
    ask_questions(found.draft, found.draft.questions.keys() - {PARTITION})
    return found


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise JobgenError(
            "file-exists", f"{path} exists and may contain your answers: choose another file, or remove it."
        )


def _save(path: Path, text: str) -> None:
    """Create the site file ``path``, which must not exist, and the folders above it.

    Raises:
        JobgenError: if that is impossible, or the text is not a valid site.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        load(str(temporary), [], Site)
        with suppress(FileExistsError):
            os.link(temporary, path)  # a rename would replace a file that another command has just saved
            return
        _refuse_existing(path)
    except OSError as error:
        raise JobgenError("cannot-write", f"cannot write {path}: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()
