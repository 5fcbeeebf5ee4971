"""Which run a session is: the seed of all that it draws, the command that began it, and its folder in this process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import operator
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from slipway.base.bounded_read import read_whole
from slipway.base.contract import CHECKPOINTS, PROVENANCE
from slipway.base.errors import SessionError, warn
from slipway.base.status import Status
from slipway.rng.seeding import derive
from slipway.run.run import Stopped

log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the seeds and of what a session says in a checkpoint; another cannot be resumed exactly."""
SESSION = "session"
"""The key of run.json under which a session keeps what is defined here."""

Begun = dict[str, Any]
"""How a run was begun, as run.json keeps it over all attempts.

``seed``: of the run. ``origin``: the seed of the first session of the process, from which later ones derive theirs.
``arguments``, ``script``, ``sha256``: of the command; the digest is "" if there is no file.
"""


class Process:
    """What the sessions of this process have done so far."""

    def __init__(self) -> None:
        """Begin with none."""
        self.origin: int | None = None
        """The seed of the first one."""
        self.left: int | None = None
        """``torch.initial_seed()`` when the last one ended: if it is another by now, the script has seeded anew."""
        self.folders: dict[str, bool] = {}
        """In which a session, or ``fit`` of Lightning, has begun and was not stopped; and whether it has failed."""


process = Process()


def facts_of(seed: int | None) -> dict[str, Any]:
    """Return what a checkpoint says, and must say to be resumed from; any seed fits None."""
    return {"session": FORMAT, **({} if seed is None else {"seed": seed})}


def as_seed(seed: Any) -> int | None:
    """Return the argument ``seed`` of a session as an int, or None.

    Raises:
        SessionError: if it is neither a whole number nor None.
    """
    try:
        return None if seed is None else operator.index(seed)
    except TypeError:
        raise SessionError("session-arguments", f"seed={seed!r} must be a whole number, or None.") from None


def identify(folder: Path, facts: Mapping[str, Any], seed: int | None, *, is_saved: bool) -> Begun:
    """Return how the run in ``folder`` was begun, or how it is begun now; rank 0 alone calls this.

    Args:
        folder: of the run.
        facts: of the checkpoint that is resumed, as far as it holds any.
        seed: what the script asks for; None to take the recorded one, or else one that follows from
            ``torch.initial_seed()``.
        is_saved: whether a checkpoint is resumed.
    """
    recorded = recorded_in(folder)
    found: Begun = {**_drawn(folder), **_command()}
    if recorded:
        _warn_of_other_command(folder, recorded, found, is_saved=is_saved)
    if is_saved:
        found |= {**recorded, **{name: facts[name] for name in ("seed",) if name in facts}}
    else:
        found |= {name: recorded[name] for name in ("seed", "origin") if name in recorded}
        found["seed"] = found["seed"] if seed is None else seed
    process.origin = found["origin"]
    return found


def say_if_done(folder: Path, before: Status | None, begun: Begun) -> None:
    """Say it if the run in ``folder`` was done already ``before`` this attempt."""
    if before is not None and before.state == "done":
        log.info(
            "the run in %s is done, at step %d (begun with the arguments: %s). It trains on only if more epochs or "
            "steps are asked for; Session(folder=...), or another RUN_DIR, begins another one",
            *(folder, before.step, _joined(begun["arguments"])),
        )


def unused_folder(folder: Path) -> Path:
    """Return ``folder``, or the first of its folders fit2, fit3, ... in which this process has ended no training."""
    number, found = 1, folder
    while os.path.realpath(found) in process.folders:
        number += 1
        found = folder / f"fit{number}"
    return found


def is_of_another(path: str, folder: Path) -> bool:
    """Return whether the checkpoint ``path`` is in a folder that this process has used, and that is not ``folder``."""
    parents = {Path(os.path.realpath(each)) for each in Path(path).parents}
    used = process.folders.keys() - {os.path.realpath(folder)}
    return any(Path(each, CHECKPOINTS) in parents for each in used)


def require_unused(folder: Path, *, run_dir: str) -> None:
    """Make sure that no session of this process has completed the run in ``folder``; warn if one has failed there.

    Args:
        folder: of the run.
        run_dir: the folder that a job names; "" if there is none.

    Raises:
        SessionError: if one has.
    """
    has_failed = process.folders.get(os.path.realpath(folder))
    if has_failed is None:
        return
    remedy = f'Give each session its folder: Session(folder=f"{run_dir or "runs"}/fold{{k}}")'
    if has_failed:
        text = "a session of this process has failed in %s, and this one continues its run. %s, unless that is meant"
        warn(log, "folder-used-twice", text, folder, remedy)
        return
    raise SessionError(
        "folder-used-twice",
        f"a session of this process has completed the run in {folder}, and this one would continue it. {remedy}; or "
        "begin another process to continue it.",
    )


@contextlib.contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Remember how what this process does in ``folder`` ends; after a stop the run may be continued."""
    path = os.path.realpath(folder)
    try:
        yield
        process.folders[path] = False
    except Stopped:
        process.folders.pop(path, None)
        raise
    except BaseException:
        process.folders[path] = True
        raise
    finally:
        process.left = torch.initial_seed()


def _drawn(folder: Path) -> Begun:
    """Return the seed, and its origin, of a run that begins in ``folder``."""
    current = torch.initial_seed()
    if process.origin is None or current != process.left:
        return {"seed": current, "origin": current}
    name = int.from_bytes(hashlib.sha256(folder.name.encode()).digest()[:8], "big")
    return {"seed": derive(process.origin, name), "origin": process.origin}


def recorded_in(folder: Path) -> Begun:
    """Return what run.json says of the beginning, as far as it does."""
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        found = dict(json.loads(read_whole(folder / PROVENANCE)))
        return dict(found.get(SESSION, {}))
    return {}


def _command() -> Begun:
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    digest = ""
    if path:
        with contextlib.suppress(OSError):
            digest = hashlib.sha256(read_whole(path)).hexdigest()
    return {"arguments": sys.argv[1:], "script": path or "", "sha256": digest}


def _warn_of_other_command(folder: Path, recorded: Begun, now: Begun, *, is_saved: bool) -> None:
    differing = []
    before = {**now, **recorded}
    if before["arguments"] != now["arguments"]:
        differing.append(f"the arguments were {_joined(before['arguments'])}, and are {_joined(now['arguments'])}")
    if before["sha256"] and now["sha256"] and before["sha256"] != now["sha256"]:
        was, is_now = (f"{each['script']} (SHA-256 {each['sha256'][:12]})" for each in (before, now))
        differing.append(f"the script was {was}, and is {is_now}")
    if differing:
        warn(
            log,
            "other-command",
            "another command began the run in %s, %s: %s. Session(folder=...), or another RUN_DIR, begins another run",
            folder,
            "which continues" if is_saved else "of which only the seed was saved, and is taken",
            "; ".join(differing),
        )


def _joined(arguments: list[str]) -> str:
    return f"`{shlex.join(arguments)}`" if arguments else "none"
