"""What a scheduler knows of a job that was submitted, and how it is told to end one.

Each has a class of its own here beside; everything else sees only the protocol.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import List, Literal, NamedTuple, Optional, Protocol, Tuple

Phase = Literal["waiting", "running", "ended"]


class Seen(NamedTuple):
    """A job, as its scheduler describes it; "" is what it does not say."""

    job_id: str
    state: str
    """The scheduler's own word."""
    phase: Phase
    """What that means to somebody who waits for the job."""
    about: str
    """Where it runs and for how long; or why it waits, or how it ended."""
    log: str
    """The file of the job's output."""
    folder: str
    """Where it was submitted."""


class Queue(Protocol):
    """The side of a scheduler that answers for submitted jobs."""

    name: str
    command: str
    """A program that every login node of such a cluster has."""
    mark: str
    """How a directive in a job script begins."""

    def look(self, job_id: str) -> List[Seen]:
        """Return the job, or each task of an array; none if the scheduler has forgotten it or never knew it.

        Raises:
            JobgenError: if the scheduler does not answer.
        """
        ...

    def cancel(self, job_id: str) -> List[str]:
        """Return the command that ends the job, so that its script is told first."""
        ...


def queues() -> List[Queue]:
    """Return all that there are."""
    from jobgen.schedulers.pbs_queue import PbsQueue  # noqa: PLC0415 -- they know this module
    from jobgen.schedulers.slurm_queue import SlurmQueue  # noqa: PLC0415

    return [SlurmQueue(), PbsQueue()]


def queue_here() -> Optional[Queue]:
    """Return the one whose commands are on this machine, if any."""
    return next((queue for queue in queues() if shutil.which(queue.command)), None)


def ask(words: List[str]) -> Tuple[int, str, str]:
    """Run a scheduler's command and return its exit code, output and error; 127 where there is no such command."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=60, check=False)
    except FileNotFoundError:
        return 127, "", f"{words[0]}: not found"
    except subprocess.TimeoutExpired:
        return 124, "", f"{words[0]}: no answer within 60 s"
    return done.returncode, done.stdout, done.stderr.strip()
