"""What keeps a run from beginning, or ends it. ``slipway.base.slugs`` knows what to do about each, by its slug."""

from __future__ import annotations

import copyreg
import errno
import logging
from typing import Any, ClassVar, Dict, Literal, Type

from slipway.base.contract import STALE
from slipway.base.slugs import EXIT_FAILED, SLUGS
from slipway.base.third_party_errors import lost_peer, lost_worker, os_error_numbers

NO_WRITES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
"""Error numbers of a file system that takes no writes until somebody acts; others (EIO, ESTALE) may pass."""


TRANSIENT = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EHOSTDOWN, errno.ENOLINK}
"""Error numbers of a file system that may soon answer again."""


class SlipwayError(Exception):
    """What a user can act on: its text says what is wrong, with the facts; its slug stands for the remedy."""

    retryable = False
    """Whether trying again unchanged may help; if not, the attempt leaves the verdict "failed"."""
    raised_on_all_ranks = False
    """Whether every rank raises it alike, so that it is enough if rank 0 reports it."""
    in_training = False
    """Whether this rank had taken an optimiser step in this attempt before."""

    def __init__(self, slug: str, text: str) -> None:
        """Say ``text``.

        Args:
            slug: a key of ``slipway.base.slugs.SLUGS``, which gives the exit code.
            text: one or more sentences.
        """
        super().__init__(slug, text)
        self.slug, self.text = slug, text
        code = SLUGS[slug].exit_code
        self.exit_code = EXIT_FAILED if code is None else code

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it without a call of ``__init__``, which takes other arguments in some subclasses."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class RunError(SlipwayError):
    """An error of a run folder, its checkpoints, or the start of its ranks; ``facts`` hold what its text names."""

    name: ClassVar[str] = ""
    """Its slug."""
    template: ClassVar[str] = ""
    """Its text, with the names of facts in braces."""
    kinds: ClassVar[Dict[str, Type[RunError]]] = {}
    """The classes below this one, by name."""

    def __init_subclass__(cls) -> None:
        """Add a class to ``kinds``."""
        RunError.kinds[cls.__name__] = cls

    def __init__(self, **facts: object) -> None:
        """Say ``template`` with ``facts`` filled in."""
        self.facts = facts
        super().__init__(self.name, self.template.format(**facts))
        self.__notes__ = [f"error[{self.slug}]: {SLUGS[self.slug].remedy}"]  # which Python prints below a traceback


class FolderInUseError(RunError):
    """Another run has the folder."""

    name = "folder-in-use"
    template = (
        "{folder} is in use by process {pid} on {host} (job {job}, since {since}); the lock of a dead owner expires "
        f"after {STALE:.0f} s."
    )


class FolderNotWritableError(RunError):
    """The folder cannot be made, or takes no files."""

    name = "cannot-write"
    template = "cannot write to the run folder {folder}: {reason}."


class CannotReadError(RunError):
    """A file or folder of a run is there, and cannot be read."""

    name = "cannot-read"
    template = "{path} cannot be read: {reason}."


class NotAFileError(RunError):
    """The name of one of the run's files is taken by something else."""

    name = "not-a-file"
    template = "{path} is {kind}, where the run keeps a file."


class FolderHoldsRunError(RunError):
    """The folder holds a run, and this attempt does not continue it."""

    name = "folder-holds-run"
    template = "{folder} holds a run already."


class AttemptNumberError(RunError):
    """What should say which attempt this is does not."""

    name = "bad-rank-variables"
    template = "{variable}={value!r} must be a whole number."


class RanksNotNamedError(RunError):
    """Nothing says which rank this process is."""

    name = "ranks-not-named"
    template = "a world of ranks needs {needed}, and {missing} not set."


class RanksContradictoryError(RunError):
    """What names the ranks makes no sense."""

    name = "bad-rank-variables"
    template = "{values} contradict each other: {rule}."


class AloneError(RunError):
    """The process would be the whole world, and its launcher started others like it."""

    name = "separate-processes"
    template = "this process is alone, but {variable}={value}: it was started by {launcher}."


class NotJoinedError(RunError):
    """A session stands before the call that joins the ranks."""

    name = "separate-processes"
    template = (
        "{found}: this process had not joined the others when the session was opened. Call "
        "torch.distributed.init_process_group(...), or hvd.init(), before that."
    )


class WorldSizeError(RunError):
    """The world has another size than planned."""

    name = "wrong-world-size"
    template = "the world has {size} ranks, but {planned} were planned (TRAINER_WORLD_SIZE)."


class RendezvousError(RunError):
    """Nothing says where the ranks find each other."""

    name = "ranks-not-named"
    template = "the rendezvous env:// needs {missing}: where rank 0 listens."


class JoinError(RunError):
    """The ranks do not find each other: a node that did not start, a network that is down, a port that is taken."""

    name = "cannot-join"
    template = "rank {rank} of {size} cannot join the others: {reason}"
    retryable = True


class AllDamagedError(RunError):
    """There are checkpoints, and none is what was written."""

    name = "damaged-checkpoint"
    template = "all {count} checkpoints in {folder} are damaged."


class DamagedCheckpointError(RunError):
    """The checkpoint that was asked for is not what was written."""

    name = "damaged-checkpoint"
    template = "the checkpoint {path} is damaged: {reason}."


class DamagedBestError(RunError):
    """The checkpoint with the best metric is not what was written; the run itself may be whole."""

    name = "damaged-best"
    template = "the best checkpoint {path} is damaged: {reason}. {left}"


class OlderCheckpointError(RunError):
    """The checkpoint that was asked for is not the last one of its run."""

    name = "older-checkpoint"
    template = "newer checkpoints follow {path}."


class NoCheckpointError(RunError):
    """There is nothing to resume from."""

    name = "no-checkpoint"
    template = "{path} is neither a checkpoint (with {manifest}) nor a run folder with one."


class NotSavedError(RunError):
    """The last checkpoint of a run is missing."""

    name = "not-saved"
    template = "the last checkpoint could not be written: {reason}. {before}"


class LostFolderError(RunError):
    """Another run has taken the folder over; the verdict on it is that run's."""

    name = "lost-folder"
    template = (
        "{lock} is no longer this run's: another one has taken the folder over, or somebody removed the lock. This run "
        "ends, and leaves the folder as it is."
    )
    retryable = True


class SessionError(RunError):
    """A script uses a Session as it cannot be used; the message says what to do instead."""

    template = "{message}"

    def __init__(self, slug: str, message: str) -> None:
        """Say ``message``; see SlipwayError for ``slug``."""
        self.name = slug  # type: ignore[misc] # of this one
        super().__init__(message=message)


class TrackerError(SessionError):
    """A tracker that was asked for does not exist, or is not installed."""


class StateMismatchError(SessionError):
    """What a script builds is not what the checkpoint was saved of."""


def to_json(error: Exception) -> dict[str, Any]:
    """Return what ``from_json`` makes the same error of on another rank."""
    return {
        "kind": type(error).__name__ if isinstance(error, RunError) else "",
        "facts": {name: str(fact) for name, fact in error.facts.items()} if isinstance(error, RunError) else {},
        "slug": slug_of(error),
        "text": str(error),
        "exit_code": code_of(error),
        "retryable": is_retryable(error),
    }


def from_json(value: dict[str, Any]) -> SlipwayError:
    """Return the error that ``to_json`` described: of the same class for a RunError, else a SlipwayError."""
    kind = RunError.kinds.get(value["kind"])
    error: SlipwayError
    if kind is None:
        error = SlipwayError(value["slug"], value["text"])
    elif issubclass(kind, SessionError):
        error = kind(value["slug"], value["text"])
    else:
        error = kind(**value["facts"])
    error.exit_code, error.retryable = value["exit_code"], value["retryable"]
    return error


def code_of(error: BaseException) -> int:
    """Return the exit code of a process that ``error`` ends."""
    return error.exit_code if isinstance(error, SlipwayError) else EXIT_FAILED


def slug_of(error: BaseException) -> str:
    """Return the slug of any error."""
    if isinstance(error, SlipwayError):
        return error.slug
    if lost_peer(error):
        return "lost-peer"
    if lost_worker(error):
        return "lost-worker"
    return "unexpected-error" if is_retryable(error) else "disk-full"


def explain(error: BaseException) -> str:
    """Return what any error says, in one line, and what to do about it."""
    if isinstance(error, RunError) and not isinstance(error, SessionError):
        return f"{error} {SLUGS[error.slug].remedy}"
    if isinstance(error, SlipwayError):
        return str(error)
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(": ")


def reason_of(error: BaseException) -> str:
    """Return the reason of a verdict of what ``error`` ended: ``SLUG: SENTENCE``, on one line."""
    return f"{slug_of(error)}: {one_line(explain(error))}"


def message_of(error: BaseException) -> str:
    """Return what a program prints of ``error`` after its own name, on one line: ``error[SLUG]: SENTENCE``."""
    return labelled("error", slug_of(error), explain(error))


def labelled(kind: Literal["error", "warning"], slug: str, text: str) -> str:
    """Return ``text`` on one line, after what it is of: ``warning[SLUG]: TEXT``."""
    return f"{kind}[{slug}]: {one_line(text)}"


def warn(log: logging.Logger, slug: str, text: str, *values: object) -> None:
    """Log a warning: ``warning[SLUG]: TEXT``, with ``values`` filled in as ``%`` does."""
    log.warning(f"warning[{slug}]: {text}", *values)  # noqa: G004 -- a slug has no %


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
