"""What nodes are asked for by, as the job script wrote it; and how their jobs are found and ended."""

from __future__ import annotations

import secrets
import subprocess
import time
from pathlib import Path

import msgspec

from trainer.config.errors import ConfigError, TrainerError

REQUEST = "request.json"
NAME = "name"
"""File with the name of the nodes' jobs, which no other job has."""
NODES = "nodes"
"""File with a line ``ADDRESS NAME SECONDS`` for each node, once they are there; SECONDS are left of its time."""
LIMIT = 60.0
"""Seconds that a command of the scheduler may take."""
TRIES = 6


class NodesError(TrainerError):
    """Too few nodes have come; later there may be more."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node, as jobgen describes it (``jobgen.schedulers.dask``)."""

    cluster: str
    """A class of Dask-Jobqueue: SLURMCluster or PBSCluster."""
    directives: list[str]
    """Of the job of a node, without ``#SBATCH`` or ``#PBS``; {name}, {logs} and {last} (seconds from now on, by which
    it must have ended) stand for what is known only now."""
    prologue: list[str]
    """Lines of that job before the worker."""
    interface: str
    """Network interface of the nodes; "": by the route."""
    seconds: int
    """Time limit of a node."""
    find: list[str]
    """The command that prints the numbers of the jobs called {name}."""
    cancel: list[str]
    """The command that ends jobs, before their numbers."""

    @classmethod
    def read(cls, folder: Path) -> Request:
        """Return the request in ``folder``.

        Raises:
            ConfigError: if it cannot be read.
        """
        path = folder / REQUEST
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError("bad-record", f"{path}: {error}; the job script writes it anew at each start.") from error


def new_name(folder: Path) -> str:
    """Return a name for the jobs, which is written down before there is one; PBS takes at most 15 characters."""
    name = f"dask-{secrets.token_hex(4)}"
    (folder / NAME).write_text(name, encoding="ascii")
    return name


def find_jobs(request: Request, name: str) -> list[str]:
    """Return the numbers of the jobs called ``name`` that wait or run.

    Raises:
        ConfigError: if the scheduler does not answer.
    """
    return _said_by([word.replace("{name}", name) for word in request.find]).split()


def cancel_jobs(request: Request, folder: Path) -> None:
    """End all jobs of that name, and make sure that none is left.

    By the name, as who asked for them may have been killed before it learned a job's number.

    Raises:
        ConfigError: if some are left, or the scheduler does not answer.
    """
    if not (folder / NAME).is_file():
        return  # none was asked for
    name = (folder / NAME).read_text(encoding="ascii")
    for _ in range(TRIES):
        if not (jobs := find_jobs(request, name)):
            return
        _said_by([*request.cancel, *jobs], may_fail=True)  # some end by themselves meanwhile
        time.sleep(2)
    raise ConfigError("jobs-left", f"jobs {' '.join(jobs)} ({name}) do not end: {request.cancel[0]} them by hand.")


def _said_by(command: list[str], *, may_fail: bool = False) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError("scheduler-silent", f"{command[0]}: {error}.") from error
    if done.returncode and not may_fail:
        raise ConfigError("scheduler-silent", f"{command[0]} failed: {' '.join(done.stderr.split())[:300]}")
    return done.stdout
