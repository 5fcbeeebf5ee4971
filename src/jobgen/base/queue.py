"""Job numbers, and the interface to query and cancel submitted jobs."""

from __future__ import annotations

import os
import re
import time
from typing import List, Literal, NamedTuple, Optional, Protocol, Tuple

Phase = Literal["waiting", "running", "ended"]


class JobId(NamedTuple):
    """A job number as users, schedulers and run folders write it: 4711, 40_9, 12[1], 12[].server, 12_1."""

    number: str
    task: str = ""
    """Index of an array task; "" otherwise."""
    server: str = ""
    """PBS server; "" for other schedulers."""

    def __str__(self) -> str:
        """Return the form at the end of run folder names."""
        return f"{self.number}_{self.task}" if self.task else self.number

    def is_in_array(self, other: JobId) -> bool:
        """Return whether this is ``other`` or a task of the array ``other``."""
        return self.number == other.number and other.task in {"", self.task}


def job_id(text: str) -> Optional[JobId]:
    """Parse a job number; return None if ``text`` is not one."""
    found = re.fullmatch(r"([0-9]{1,18})(?:_([0-9]{1,18})|\[([0-9]{0,18})\])?(?:\.([A-Za-z0-9][\w.-]*))?", text)
    return JobId(found[1], found[2] or found[3] or "", found[4] or "") if found else None


def tasks_of(text: str) -> List[JobId]:
    """Parse a scheduler's ``text`` into jobs without server: one, or array tasks as in 4711_[2-11%2], 4711_2,5-9:2."""
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
    """A scheduler's record of a job; fields that it does not report are ""."""

    job_id: str
    state: str
    """State in the scheduler's terms."""
    phase: Phase
    """Phase of that state: waiting, running or ended."""
    about: str
    """Nodes and run time, or the reason for waiting, or how the job ended."""
    log: str
    """Path of the job log."""
    folder: str
    """Folder of submission."""
    failed: bool = False
    """Whether the scheduler counts its end as a failure, even if a run was only stopped and can continue."""
    name: str = ""
    """Name of the job."""
    submitted: float = 0.0
    """Time of submission or, under Slurm, of the last requeue, in seconds since 1970; 0.0 if it is not reported."""
    script: str = ""
    """Path of the submitted script, with its arguments if the scheduler takes any."""
    requeued: bool = False
    """Whether Slurm has requeued it."""


class Queue(Protocol):
    """Interface of a scheduler to query and cancel submitted jobs."""

    name: str
    """Name as in site files and RUN_DIR/logs/N/job."""
    command: str
    """Program whose presence identifies a login node of such a cluster."""
    servers: bool
    """Whether job numbers can contain a server."""
    delivers_log: bool
    """Whether a job's log appears only at the job's end."""

    def look(self, job: JobId) -> List[Seen]:
        """Return the records of the job or of each task of an array; [] if the scheduler has none (any more).

        Raises:
            JobgenError: if the scheduler does not answer.
        """
        ...

    def mine(self) -> List[Seen]:
        """Return the records of all waiting and running jobs of this user, and of each task of their arrays.

        Raises:
            JobgenError: if the scheduler does not answer.
        """
        ...

    def cancel(self, job: JobId, seen: List[Seen]) -> List[str]:
        """Return the command that cancels the job with a signal to its script first; ``seen``: its records."""
        ...

    def largest_array(self) -> Optional[int]:
        """Return the maximum number of tasks in an array; None if the scheduler does not report it."""
        ...


NO_COMMAND = 127
"""Exit code of a command that cannot be started."""
LIMIT = 60.0
"""Time limit of a scheduler's command, in seconds."""


def timestamp(text: str, form: str) -> float:
    """Return a scheduler's local time in seconds since 1970; 0.0 if ``text`` does not have the format ``form``."""
    try:
        return time.mktime(time.strptime(text, form))
    except (ValueError, OverflowError):
        return 0.0


def run_command(command: List[str], *, without: str = "", **variables: str) -> Tuple[int, str, str]:
    """Run a scheduler's command; return exit code, output, and errors on one line.

    The exit code is NO_COMMAND if the command cannot be started, and 124 after LIMIT seconds.

    Args:
        command: the command.
        without: prefix of the variables to remove from its environment, if any.
        variables: variables to add to its environment.
    """
    import subprocess  # noqa: PLC0415 -- not needed to render a script

    environment = {name: value for name, value in os.environ.items() if not (without and name.startswith(without))}
    try:
        done = subprocess.run(
            command,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
        )
    except OSError as error:
        return NO_COMMAND, "", f"{command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return 124, "", f"{command[0]}: no answer within {LIMIT:.0f} s"
    return done.returncode, done.stdout, "; ".join(done.stderr.splitlines())[:300]
