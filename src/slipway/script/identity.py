"""Identity of a session's run: its seed, the command that began it, and its folder in this process."""

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
from slipway.rng.seeding import derive
from slipway.run.program import Stopped
from slipway.run.status import Status

log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the seeds and of a session's facts in a checkpoint; a run of another version cannot resume exactly."""
SESSION = "session"
"""The key of run.json under which a session stores the values that ``Begun`` describes."""

Begun = dict[str, Any]
"""How a run was begun; run.json keeps these values over all attempts.

``seed``: the run's seed. ``origin``: the seed of the process's first session, from which later sessions derive theirs.
``arguments``, ``script``, ``sha256``: the command's arguments, script path and digest, which is "" without a file.
"""


class Process:
    """State shared by all sessions of this process."""

    def __init__(self) -> None:
        """Begin without sessions."""
        self.origin: int | None = None
        """The first session's seed."""
        self.left: int | None = None
        """``torch.initial_seed()`` when the last session ended; if it differs now, the script has reseeded."""
        self.folders: dict[str, bool] = {}
        """Folders in which a session, or Lightning's ``fit``, ended without being stopped; the value: it failed."""


process = Process()


def facts_of(seed: int | None) -> dict[str, Any]:
    """Return the facts that a checkpoint stores and must match on resume; without a seed if ``seed`` is None."""
    return {"session": FORMAT, **({} if seed is None else {"seed": seed})}


def as_seed(seed: Any) -> int | None:
    """Return the argument ``seed`` of a session as an int, or None.

    Raises:
        SessionError: if it is neither an integer nor None.
    """
    try:
        return None if seed is None else operator.index(seed)
    except TypeError:
        raise SessionError("session-arguments", f"seed={seed!r} must be an integer or None.") from None


def identify(folder: Path, facts: Mapping[str, Any], seed: int | None, *, is_saved: bool) -> Begun:
    """Return how the run in ``folder`` was begun, or how it begins now; only rank 0 calls this.

    Args:
        folder: the run folder.
        facts: facts of the checkpoint to resume from; may be empty.
        seed: the seed that the script requests; None for the recorded seed, or else one derived from
            ``torch.initial_seed()``.
        is_saved: whether the run resumes from a checkpoint.
    """
    recorded = read_recorded(folder)
    found: Begun = {**_seed_and_origin(folder), **_command()}
    if recorded:
        _warn_if_other_command(folder, recorded, found, is_saved=is_saved)
    if is_saved:
        found |= {**recorded, **{name: facts[name] for name in ("seed",) if name in facts}}
    else:
        found |= {name: recorded[name] for name in ("seed", "origin") if name in recorded}
        found["seed"] = found["seed"] if seed is None else seed
    process.origin = found["origin"]
    return found


def log_if_done(folder: Path, before: Status | None, begun: Begun) -> None:
    """Log a message if the run in ``folder`` was already done, according to its status ``before`` this attempt."""
    if before is not None and before.state == "done":
        log.info(
            "the run in %s is done, at step %d (begun with the arguments: %s). It continues only if the script "
            "requests more epochs or steps; to begin a new run, use Session(folder=...) or another RUN_DIR",
            *(folder, before.step, _joined(begun["arguments"])),
        )


def next_unused_folder(folder: Path) -> Path:
    """Return ``folder``, or the first of its subfolders fit2, fit3, ... in which this process has ended no training."""
    number, found = 1, folder
    while os.path.realpath(found) in process.folders:
        number += 1
        found = folder / f"fit{number}"
    return found


def is_of_other_folder(path: str, folder: Path) -> bool:
    """Return whether the checkpoint ``path`` is in a folder, other than ``folder``, that this process has used."""
    parents = {Path(os.path.realpath(each)) for each in Path(path).parents}
    used = process.folders.keys() - {os.path.realpath(folder)}
    return any(Path(each, CHECKPOINTS) in parents for each in used)


def require_unused(folder: Path, *, run_dir: str) -> None:
    """Raise an error if a session of this process has completed the run in ``folder``; warn if one has failed there.

    Args:
        folder: the run folder.
        run_dir: the job's RUN_DIR; "" without one.

    Raises:
        SessionError: if a session has completed the run.
    """
    has_failed = process.folders.get(os.path.realpath(folder))
    if has_failed is None:
        return
    remedy = f'Give each session its folder: Session(folder=f"{run_dir or "runs"}/fold{{k}}")'
    if has_failed:
        text = "a session of this process failed in %s; this session continues its run. If that is not intended: %s"
        warn(log, "folder-used-twice", text, folder, remedy)
        return
    raise SessionError(
        "folder-used-twice",
        f"a session of this process has completed the run in {folder}, and this session would continue it. {remedy}; "
        "or start another process to continue the run.",
    )


@contextlib.contextmanager
def record_session_outcome(folder: Path) -> Iterator[None]:
    """Note whether the body, which uses ``folder``, completed or failed; after a stop the run may be continued."""
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


def _seed_and_origin(folder: Path) -> Begun:
    """Return the seed and origin of a run that begins in ``folder``."""
    current = torch.initial_seed()
    if process.origin is None or current != process.left:
        return {"seed": current, "origin": current}
    name = int.from_bytes(hashlib.sha256(folder.name.encode()).digest()[:8], "big")
    return {"seed": derive(process.origin, name), "origin": process.origin}


def read_recorded(folder: Path) -> Begun:
    """Return how the run was begun, from run.json in ``folder``; an empty dictionary if that cannot be read."""
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


def _warn_if_other_command(folder: Path, recorded: Begun, now: Begun, *, is_saved: bool) -> None:
    differing = []
    before = {**now, **recorded}
    if before["arguments"] != now["arguments"]:
        differing.append(f"the arguments were {_joined(before['arguments'])}, now {_joined(now['arguments'])}")
    if before["sha256"] and now["sha256"] and before["sha256"] != now["sha256"]:
        was, is_now = (f"{each['script']} (SHA-256 {each['sha256'][:12]})" for each in (before, now))
        differing.append(f"the script was {was}, now {is_now}")
    if differing:
        warn(
            log,
            "other-command",
            "another command began the run in %s; %s: %s. To begin a new run, use Session(folder=...) or another "
            "RUN_DIR",
            folder,
            "this run continues it" if is_saved else "it saved no checkpoint, and this run takes over its seed",
            "; ".join(differing),
        )


def _joined(arguments: list[str]) -> str:
    return f"`{shlex.join(arguments)}`" if arguments else "none"
