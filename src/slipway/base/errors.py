"""Errors that prevent or end a run. ``slipway.base.slugs`` contains the remedy for each slug."""

from __future__ import annotations

import copyreg
import errno
from typing import TYPE_CHECKING, Any, ClassVar, Dict, Iterable, Literal, Type

from slipway.base.contract import STALE
from slipway.base.slugs import EXIT_FAILED, SLUGS
from slipway.base.third_party_errors import lost_peer, lost_worker, os_error_numbers

if TYPE_CHECKING:
    import logging

PERMANENT_WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
"""Error numbers of a file system that accepts no writes until the user acts; others (EIO, ESTALE) may pass."""


TRANSIENT = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EINTR, errno.EHOSTDOWN, errno.ENOLINK}
"""Error numbers of a file system that may soon respond again."""


def did_you_mean(name: str, choices: Iterable[str], *, cutoff: float = 0.5) -> str:
    """Return " Did you mean 'x'?" for the choice closest to ``name`` (difflib's ratio), or "" if none is close."""
    from difflib import get_close_matches  # noqa: PLC0415 -- needed only on errors

    found = get_close_matches(name[:80], list(choices), n=1, cutoff=cutoff)
    return f" Did you mean {found[0]!r}?" if found else ""


class SlipwayError(Exception):
    """Error that a user can act on: ``text`` states what is wrong, ``slug`` leads to the remedy."""

    retryable = False
    """Whether an unchanged retry may help; if not, the attempt's verdict is "failed"."""
    in_training = False
    """Whether this rank had taken an optimizer step in this attempt before the error."""

    def __init__(self, slug: str, text: str, *, raised_on_all_ranks: bool = False) -> None:
        """Create the error.

        Args:
            slug: a key of ``slipway.base.slugs.SLUGS``, which contains the exit code.
            text: the message, one or more sentences.
            raised_on_all_ranks: whether every rank raises the same error, so that only rank 0 needs to report it.
        """
        super().__init__(slug, text)
        self.slug, self.text, self.raised_on_all_ranks = slug, text, raised_on_all_ranks
        code = SLUGS[slug].exit_code
        self.exit_code = EXIT_FAILED if code is None else code

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without a call of ``__init__``, whose arguments differ in some subclasses."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class RunError(SlipwayError):
    """Error of a run folder, its checkpoints, or the start of its ranks; ``facts`` holds the values in its text."""

    name: ClassVar[str] = ""
    """Slug of the error."""
    template: ClassVar[str] = ""
    """Text of the error, with the names of facts in braces."""
    kinds: ClassVar[Dict[str, Type[RunError]]] = {}
    """All subclasses, by name."""

    def __init_subclass__(cls) -> None:
        """Register a subclass in ``kinds``."""
        RunError.kinds[cls.__name__] = cls

    def __init__(self, **facts: object) -> None:
        """Fill ``facts`` into ``template``."""
        self.facts = facts
        super().__init__(self.name, self.template.format(**facts))
        self.__notes__ = [f"error[{self.slug}]: {SLUGS[self.slug].remedy}"]  # Python prints it below a traceback


class FolderInUseError(RunError):
    """Another process uses the run folder."""

    name = "folder-in-use"
    template = (
        "{folder} is in use by process {pid} on {host} (job {job}, since {since}); the lock of a dead owner expires "
        f"after {STALE:.0f} s."
    )


class FolderNotWritableError(RunError):
    """The run folder cannot be created or written."""

    name = "cannot-write"
    template = "cannot write to the run folder {folder}: {reason}."


class CannotReadError(RunError):
    """A file or folder of a run exists but cannot be read."""

    name = "cannot-read"
    template = "{path} cannot be read: {reason}."


class NotAFileError(RunError):
    """A path that the run uses for a file is not a file of the run."""

    name = "not-a-file"
    template = "{path} is {kind}, but the run uses this path for a file."


class FolderHoldsRunError(RunError):
    """The folder already holds a run that this attempt does not continue."""

    name = "folder-holds-run"
    template = "{folder} already holds a run."


class AttemptNumberError(RunError):
    """The variable that holds the attempt's number is not a number."""

    name = "bad-rank-variables"
    template = "{variable}={value!r} must be a whole number."


class MissingRankVariablesError(RunError):
    """No variable defines this process's rank."""

    name = "ranks-not-named"
    template = "several ranks require {needed}, but these are not set: {missing}."


class InvalidRankVariablesError(RunError):
    """The variables that define the rank are inconsistent."""

    name = "bad-rank-variables"
    template = "invalid rank variables {values}: {rule}."


class SingleProcessError(RunError):
    """The world has one process, but its launcher started several."""

    name = "separate-processes"
    template = "this process is alone, but {variable}={value} shows that {launcher} started several processes."


class NotJoinedError(RunError):
    """A session opened before the script joined the ranks."""

    name = "separate-processes"
    template = (
        "{found}: this process had not joined the other ranks when the session opened. Call "
        "torch.distributed.init_process_group(...), or hvd.init(), before you open the session."
    )


class WorldSizeError(RunError):
    """The world size differs from the planned one."""

    name = "wrong-world-size"
    template = "the world has {size} ranks, but {planned} were planned (TRAINER_WORLD_SIZE)."


class RendezvousError(RunError):
    """The address of the rendezvous is not set."""

    name = "ranks-not-named"
    template = "the rendezvous env:// needs {missing}, the address at which rank 0 listens."


class JoinError(RunError):
    """The ranks could not connect, e.g. a node did not start, the network is down, or a port is taken."""

    name = "cannot-join"
    template = "rank {rank} of {size} cannot join the others: {reason}"
    retryable = True


class AllDamagedError(RunError):
    """All checkpoints of the run are damaged."""

    name = "damaged-checkpoint"
    template = "all {count} checkpoints in {folder} are damaged."


class DamagedCheckpointError(RunError):
    """The requested checkpoint is damaged."""

    name = "damaged-checkpoint"
    template = "the checkpoint {path} is damaged: {reason}."


class DamagedBestError(RunError):
    """The checkpoint with the best metric is damaged; the run itself may be undamaged."""

    name = "damaged-best"
    template = "the best checkpoint {path} is damaged: {reason}. {left}"


class OlderCheckpointError(RunError):
    """The requested checkpoint is not the newest one of its run."""

    name = "older-checkpoint"
    template = "the run has newer checkpoints than {path}."


class NoCheckpointError(RunError):
    """The path contains no checkpoint to resume from."""

    name = "no-checkpoint"
    template = "{path} is neither a checkpoint (with {manifest}) nor a run folder that contains one."


class NotSavedError(RunError):
    """The last checkpoint of a run could not be written."""

    name = "not-saved"
    template = "the last checkpoint could not be written: {reason}. {before}"


class LostFolderError(RunError):
    """Another run has taken the folder over; this run must not write its verdict there."""

    name = "lost-folder"
    template = (
        "this run no longer holds {lock}: another run has taken the folder over, or the lock was removed. This run "
        "ends, and leaves the folder unchanged."
    )
    retryable = True


class SessionError(RunError):
    """Invalid use of a Session by a script; the message states the correct use."""

    template = "{message}"

    def __init__(self, slug: str, message: str) -> None:
        """Create the error with the text ``message``; see SlipwayError for ``slug``."""
        self.name = slug  # type: ignore[misc] # of this instance
        super().__init__(message=message)


class TrackerError(SessionError):
    """A requested tracker does not exist, or is not installed."""


class StateMismatchError(SessionError):
    """The script's objects do not match the checkpoint."""


def to_json(error: Exception) -> dict[str, Any]:
    """Return ``error`` as JSON, from which ``from_json`` recreates it on another rank."""
    return {
        "kind": type(error).__name__ if isinstance(error, RunError) else "",
        "facts": {name: str(fact) for name, fact in error.facts.items()} if isinstance(error, RunError) else {},
        "slug": slug_of(error),
        "text": str(error),
        "exit_code": code_of(error),
        "retryable": is_retryable(error),
    }


def from_json(value: dict[str, Any]) -> SlipwayError:
    """Return the error in the output of ``to_json``: of the same class for a RunError, else a SlipwayError."""
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
    """Return the exit code of a process that ends with ``error``."""
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
    """Return the message of any error; for a RunError except SessionError, add the remedy."""
    if isinstance(error, RunError) and not isinstance(error, SessionError):
        return f"{error} {SLUGS[error.slug].remedy}"
    if isinstance(error, SlipwayError):
        return str(error)
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".rstrip(": ")


def reason_of(error: BaseException) -> str:
    """Return the REASON of the verdict for ``error``: ``SLUG: SENTENCE``, on one line."""
    return f"{slug_of(error)}: {one_line(explain(error))}"


def error_line(error: BaseException) -> str:
    """Return the line that a program prints for ``error`` after its own name: ``error[SLUG]: SENTENCE``."""
    return add_label("error", slug_of(error), explain(error))


def add_label(kind: Literal["error", "warning"], slug: str, text: str) -> str:
    """Return ``text`` on one line after kind and slug, such as ``warning[SLUG]: TEXT``."""
    return f"{kind}[{slug}]: {one_line(text)}"


def warn(log: logging.Logger, slug: str, text: str, *values: object) -> None:
    """Log a warning: ``warning[SLUG]: TEXT``, with ``values`` filled in as ``%`` does."""
    log.warning(f"warning[{slug}]: {text}", *values)  # noqa: G004 -- a slug has no %


def is_retryable(error: BaseException) -> bool:
    """Return whether an unchanged retry may help after ``error``.

    This holds for errors that are not from slipway, unless a file system accepts no writes. safetensors has the error
    number only in its message.
    """
    if isinstance(error, SlipwayError):
        return error.retryable
    if isinstance(error, OSError):
        return error.errno not in PERMANENT_WRITE_ERRORS
    return not any(number in PERMANENT_WRITE_ERRORS for number in os_error_numbers(error))


def one_line(text: str) -> str:
    """Return ``text`` on one line, without control characters and other unprintable characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
