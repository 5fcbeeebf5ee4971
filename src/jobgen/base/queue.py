"""What a scheduler knows of a job that was submitted, and how to end one."""

from __future__ import annotations

import os
import re
from typing import List, Literal, NamedTuple, Optional, Protocol, Tuple

Phase = Literal["waiting", "running", "ended"]


class JobId(NamedTuple):
    """A job's number as people, schedulers and run folders write it: 4711, 40_9, 12[1], 12[].server, 12_1."""

    number: str
    task: str = ""
    """The index of a task of an array."""
    server: str = ""
    """PBS's server; other schedulers have none."""

    def __str__(self) -> str:
        """Return the form that names of run folders end with."""
        return f"{self.number}_{self.task}" if self.task else self.number

    def of_array(self, other: JobId) -> bool:
        """Return whether this is ``other``, or a task of the array ``other``."""
        return self.number == other.number and other.task in {"", self.task}


def job_id(text: str) -> Optional[JobId]:
    """Return the number that ``text`` is; None if it is no job's number."""
    found = re.fullmatch(r"([0-9]{1,18})(?:_([0-9]{1,18})|\[([0-9]{0,18})\])?(?:\.([A-Za-z0-9][\w.-]*))?", text)
    return JobId(found[1], found[2] or found[3] or "", found[4] or "") if found else None


def tasks_of(text: str) -> List[JobId]:
    """Return the jobs that a scheduler's ``text`` names: one, or tasks of an array, as 4711_[2-11%2], 4711_2,5-9:2.

    Without the server.
    """
    if job := job_id(text):
        return [job._replace(server="")]
    found = re.fullmatch(r"([0-9]{1,18})_\[?([0-9,:.-]+)(?:%[0-9]+)?\]?", text)
    ranges = (
        [re.fullmatch(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?", part) for part in found[2].split(",")] if found else []
    )
    return [
        JobId(found[1], str(task))
        for part in ranges
        if found and part
        for task in range(int(part[1]), int(part[2] or part[1]) + 1, int(part[3] or 1))
    ]


class Seen(NamedTuple):
    """A job, as its scheduler describes it; "" is what it does not say."""

    job_id: str
    state: str
    """The scheduler's own name of the state."""
    phase: Phase
    """What that means to somebody who waits for the job."""
    about: str
    """Where it runs and for how long; or why it waits, or how it ended."""
    log: str
    """The file of the job's output."""
    folder: str
    """Where it was submitted."""
    failed: bool = False
    """Whether it has ended as the scheduler calls a failure, also where it is only stopped, and can be continued."""


class Queue(Protocol):
    """The side of a scheduler that answers for submitted jobs."""

    name: str
    """As in a site's file and in RUN_DIR/logs/N/job."""
    command: str
    """A program that every login node of such a cluster has."""
    servers: bool
    """Whether its numbers of jobs can name a server."""

    def look(self, job: JobId) -> List[Seen]:
        """Return the job, or each task of an array; none if the scheduler has forgotten it or never knew it.

        Raises:
            JobgenError: if the scheduler does not answer.
        """
        ...

    def cancel(self, job: JobId, seen: List[Seen]) -> List[str]:
        """Return the command that ends the job, which was ``seen``, so that its script gets a signal first."""
        ...

    def largest_array(self) -> Optional[int]:
        """Return how many tasks an array may have; None where the scheduler does not say."""
        ...


LIMIT = 60.0
"""Seconds that a scheduler's command may take."""


def ask(command: List[str], **variables: str) -> Tuple[int, str, str]:
    """Run a scheduler's command, with ``variables`` besides, and return its exit code, output, and error on one line.

    The code is 127 where there is no such command, 124 where it does not answer.
    """
    import subprocess  # noqa: PLC0415 -- rendering a script needs none of it

    try:
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
        )
    except OSError as error:
        return 127, "", f"{command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return 124, "", f"{command[0]}: no answer within {LIMIT:.0f} s"
    return done.returncode, done.stdout, "; ".join(done.stderr.splitlines())[:300]
