"""What keeps a run from beginning or going on.

An error says what is wrong and carries the facts. What to do about it depends on how the folder, the checkpoint or the
ranks were named, so a front end adds that: see ``trainer.errors.explain``.
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar, Dict, Type

from slipway.layout import EXIT_CONFIG, STALE
from slipway.third_party_errors import os_error_numbers

NO_WRITES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
"""Error numbers of a file system that takes no writes until somebody acts; others (EIO, ESTALE) may pass."""


TRANSIENT = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EHOSTDOWN, errno.ENOLINK}
"""Error numbers of a file system that may soon answer again."""


class SlipwayError(Exception):
    """Training cannot go on."""

    exit_code = 1
    retryable = False
    """Whether trying again unchanged may help; if not, the attempt leaves the verdict "failed"."""
    raised_on_all_ranks = False
    """Whether every rank raises it alike, so that it is enough if rank 0 reports it."""
    in_training = False
    """Whether this rank had taken an optimiser step in this attempt before."""


class RunError(SlipwayError):
    """An error of a run folder or its checkpoints; ``facts`` hold what its text names."""

    text: ClassVar[str] = ""
    kinds: ClassVar[Dict[str, Type[RunError]]] = {}
    """The classes below this one, by name."""

    def __init_subclass__(cls) -> None:
        """Add a class to ``kinds``."""
        RunError.kinds[cls.__name__] = cls

    def __init__(self, **facts: object) -> None:
        """Say ``text`` with ``facts`` filled in."""
        self.facts = facts
        super().__init__(self.text.format(**facts))


class RefusedError(RunError):
    """The attempt may not begin."""

    exit_code = EXIT_CONFIG


class FolderInUseError(RefusedError):
    """Another run has the folder."""

    text = (
        "{folder} is in use by process {pid} on {host} (job {job}, since {since}); the lock of a dead owner expires "
        f"after {STALE:.0f} s."
    )


class FolderNotWritableError(RefusedError):
    """The folder cannot be made, or takes no files."""

    text = "cannot write to the run folder {folder}: {reason}."


class NotAFileError(RefusedError):
    """The name of one of the run's files is taken by something else."""

    text = "{path} is {kind}, where the run keeps a file: move it away."


class FolderHoldsRunError(RefusedError):
    """The folder holds a run, and this attempt does not continue it."""

    text = "{folder} holds a run already."


class AttemptNumberError(RefusedError):
    """What should say which attempt this is does not."""

    text = "{variable}={value!r} must be a whole number; look at what starts the ranks."


class RanksNotNamedError(RefusedError):
    """Nothing says which rank this process is."""

    text = "a world of ranks needs {needed}, and {missing} not set."


class RanksContradictoryError(RefusedError):
    """What names the ranks makes no sense."""

    text = "{values} contradict each other: {rule}; look at what starts the ranks."


class AloneError(RefusedError):
    """The process would be the whole world, and its launcher started others like it."""

    text = "this process is alone, but {variable}={value}: it was started by {launcher}."


class WorldSizeError(RefusedError):
    """The world has another size than planned."""

    text = (
        "the world has {size} ranks, but {planned} were planned (TRAINER_WORLD_SIZE): the launcher and the MPI library "
        "of the image may not match, or a node did not start."
    )


class RendezvousError(RefusedError):
    """Nothing says where the ranks find each other."""

    text = "the rendezvous env:// needs {missing}: where rank 0 listens."


class JoinError(RunError):
    """The ranks do not find each other: a node that did not start, a network that is down, a port that is taken."""

    text = "rank {rank} of {size} cannot join the others: {reason}"
    retryable = True


class AllDamagedError(RefusedError):
    """There are checkpoints, and none is what was written."""

    text = "all {count} checkpoints in {folder} are damaged: move them away to restart."


class DamagedCheckpointError(RefusedError):
    """The checkpoint that was asked for is not what was written."""

    text = "the checkpoint {path} is damaged: {reason}."


class OlderCheckpointError(RefusedError):
    """The checkpoint that was asked for is not the last one of its run."""

    text = "newer checkpoints follow {path}."


class NoCheckpointError(RefusedError):
    """There is nothing to resume from."""

    text = "{path} is neither a checkpoint (with {manifest}) nor a run folder with one."


class NotSavedError(RunError):
    """The last checkpoint of a run is missing."""

    text = "the last checkpoint could not be written: {reason}. {before}"


class LostFolderError(RunError):
    """Another run has taken the folder over; the verdict on it is that run's."""

    text = (
        "{lock} is no longer this run's: another one has taken the folder over, or somebody removed the lock. This run "
        "ends without touching the folder."
    )
    retryable = True


class SessionError(RunError):
    """A script uses a Session as it cannot be used; the message says what to do instead."""

    text = "{message}"

    def __init__(self, message: str) -> None:
        """Say ``message``."""
        super().__init__(message=message)


class TrackerError(SessionError):
    """A tracker that was asked for does not exist, or is not installed."""

    exit_code = EXIT_CONFIG


class StateMismatchError(SessionError):
    """What a script builds is not what the checkpoint was saved of."""

    exit_code = EXIT_CONFIG


def to_json(error: Exception) -> dict[str, Any]:
    """Return what ``from_json`` makes the same error of on another rank."""
    code = error.exit_code if isinstance(error, SlipwayError) else SlipwayError.exit_code
    value = {"text": str(error), "exit_code": code, "retryable": is_retryable(error)}
    if isinstance(error, RunError):
        value |= {"kind": type(error).__name__, "facts": {name: str(fact) for name, fact in error.facts.items()}}
    return value


def from_json(value: dict[str, Any]) -> SlipwayError:
    """Return the error that ``to_json`` described: of the same class for a RunError, else a SlipwayError."""
    error = RunError.kinds[value["kind"]](**value["facts"]) if "kind" in value else SlipwayError(value["text"])
    error.exit_code, error.retryable = value["exit_code"], value["retryable"]
    return error


def is_retryable(error: BaseException) -> bool:
    """Return whether trying again unchanged may help after ``error``.

    Of errors that are not slipway's this holds unless a file system takes no writes. safetensors names the error number
    in its text only.
    """
    if isinstance(error, SlipwayError):
        return error.retryable
    if isinstance(error, OSError):
        return error.errno not in NO_WRITES
    return not any(number in NO_WRITES for number in os_error_numbers(error))


def one_line(text: str) -> str:
    """Return ``text`` on one line, without control characters and what else cannot be printed."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
