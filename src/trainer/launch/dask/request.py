"""Request for nodes, written by the job script, and the commands that find and cancel the nodes' jobs."""

from __future__ import annotations

import secrets
import subprocess
import time
from pathlib import Path

import msgspec

from trainer.config.errors import ConfigError, TrainerError

REQUEST = "request.json"
NAME = "name"
"""File with the unique name of the nodes' jobs."""
NODES = "nodes"
"""File with a line ``ADDRESS NAME SECONDS`` for each node that arrived; SECONDS is its remaining time."""
LIMIT = 60.0
"""Seconds that a command of the scheduler may take."""
TRIES = 6


class NodesError(TrainerError):
    """Too few nodes arrived; a later try may get more."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Description of a node's job, as jobgen writes it (``jobgen.schedulers.dask``)."""

    cluster: str
    """A class of Dask-Jobqueue: SLURMCluster or PBSCluster."""
    directives: list[str]
    """Directives of a node's job, without ``#SBATCH`` or ``#PBS``. The client replaces {name}, {logs} and {last}
    (seconds from submission by which the job must have ended)."""
    prologue: list[str]
    """Lines of the job before the worker's command."""
    interface: str
    """Network interface of the nodes; "": the one of the default route."""
    seconds: int
    """Time limit of a node."""
    find: list[str]
    """Command that prints the job IDs of the jobs called {name}."""
    cancel: list[str]
    """Command that cancels jobs; their job IDs are appended."""

    @classmethod
    def read(cls, folder: Path) -> Request:
        """Read the request from ``folder``.

        Raises:
            ConfigError: if it cannot be read.
        """
        path = folder / REQUEST
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(
                "bad-record", f"{path}: {error}; the job script writes a new one at each start."
            ) from error


def new_name(folder: Path) -> str:
    """Write a new name for the jobs to ``folder`` before the first submission, and return it.

    PBS accepts at most 15 characters.
    """
    name = f"dask-{secrets.token_hex(4)}"
    (folder / NAME).write_text(name, encoding="ascii")
    return name


def find_jobs(request: Request, name: str) -> list[str]:
    """Return the job IDs of the jobs called ``name`` that wait or run.

    Raises:
        ConfigError: if the scheduler does not answer.
    """
    return _output_of([word.replace("{name}", name) for word in request.find]).split()


def cancel_jobs(request: Request, folder: Path) -> None:
    """Cancel all jobs with the name in ``folder``, and wait until none remains.

    Find them by name, because the process that submitted them may have been killed before it received a job ID.

    Raises:
        ConfigError: if jobs remain, or if the scheduler does not answer.
    """
    if not (folder / NAME).is_file():
        return  # no job was requested
    name = (folder / NAME).read_text(encoding="ascii")
    for _ in range(TRIES):
        if not (jobs := find_jobs(request, name)):
            return
        _output_of([*request.cancel, *jobs], may_fail=True)  # some jobs may have ended meanwhile
        time.sleep(2)
    raise ConfigError(
        "jobs-left", f"jobs {' '.join(jobs)} ({name}) do not end: cancel them manually with {request.cancel[0]}."
    )


def _output_of(command: list[str], *, may_fail: bool = False) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError("scheduler-silent", f"{command[0]}: {error}.") from error
    if done.returncode and not may_fail:
        raise ConfigError("scheduler-silent", f"{command[0]} failed: {' '.join(done.stderr.split())[:300]}")
    return done.stdout
