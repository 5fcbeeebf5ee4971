"""The process that asks for nodes and holds them: Dask's scheduler, and the jobs of its workers."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask_jobqueue
from dask_jobqueue.core import JobQueueCluster
from distributed.comm.addressing import get_address_host
from distributed.utils import get_ip_interface

from distributed import Client
from slipway.base.files import write_atomically
from trainer.config.errors import ConfigError
from trainer.launch.dask import worker
from trainer.launch.dask.connection import Connection, make_security, remove_key
from trainer.launch.dask.request import NODES, NodesError, Request, cancel_jobs, find_jobs, new_name

DEATH_TIMEOUT = 15
"""Seconds that a worker looks for the scheduler before its job ends."""
LEEWAY = 120
"""Seconds more than a node waits and works, after which Slurm forgets its job, had it to wait until then."""
SILENCE = "60 s"
"""After which a worker that says nothing is lost: its node may be without power."""
POLL = 0.5
REPORT = 60.0
"""Seconds between two lines of progress."""
LOGS = ("*.log", "*.OU", "*.ER")
"""Of the nodes' jobs: Slurm's by the request, PBS's standard output and error as qsub(1) calls them in a folder."""
ON_LOOPBACK = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""No dashboard; Dask opens a small HTTP server all the same."""


async def hold(folder: Path, *, workers: int, minimum: int, wait: float, save: float) -> int:
    """Ask for nodes, write down which have come, and hold them until SIGTERM, or until the caller is gone.

    Args:
        folder: of the request, on a disk that all nodes share.
        workers: nodes to ask for.
        minimum: nodes with which training may begin once ``wait`` is over.
        wait: seconds for all to come.
        save: seconds that the first node must have left then, and more.

    Raises:
        ConfigError: if the scheduler refuses a job.
        NodesError: if fewer than ``minimum`` have come in time.
    """
    ended = _when_ended()
    logging.getLogger("distributed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="Couldn't detect a suitable IP")  # of a host that reaches no internet
    request = Request.read(folder)
    _require_commands(request)
    name = new_name(folder)
    dask.config.set({"distributed.scheduler.worker-ttl": SILENCE})
    try:
        async with _cluster(request, folder, name, wait=wait) as cluster:
            await _submit(cluster, workers)
            check = partial(_check_jobs, request, folder, name, minimum=minimum)
            if await _come(cluster, ended, check, workers=workers, minimum=minimum, wait=wait):
                await _write_down(cluster, request, folder, save=save)
                await ended.wait()
    finally:
        remove_key(folder)
        cancel_jobs(request, folder)
    return 0


def _require_commands(request: Request) -> None:
    """Look for the scheduler's commands.

    Raises:
        ConfigError: if one is missing here.
    """
    submit = str(getattr(dask_jobqueue, request.cluster).job_cls.submit_command).split()[0]
    for command in (submit, request.find[0], request.cancel[0]):
        if not shutil.which(command):
            raise ConfigError(
                "no-scheduler-command", f"no {command} on this machine: start the client where jobs are submitted."
            )


def _cluster(request: Request, folder: Path, name: str, *, wait: float) -> JobQueueCluster:
    """Return the cluster, which is not started yet.

    Its jobs have the request's directives alone (``job_directives_skip``): Dask-Jobqueue's own would ask for memory,
    and know nothing of GPUs.
    """
    kind = getattr(dask_jobqueue, request.cluster)
    known = {"{name}": name, "{logs}": str(folder), "{last}": f"{wait + request.seconds + LEEWAY:.0f}"}
    filled = [re.sub(r"\{\w+\}", lambda found: known.get(found[0], found[0]), line) for line in request.directives]
    arguments: dict[str, Any] = {
        "cores": 4,  # threads of a worker: as many steps may run at once
        "memory": "1 GiB",  # of the worker itself, whose ranks are processes of their own
        "processes": 1,
        "nanny": False,
        "death_timeout": DEATH_TIMEOUT,
        "python": shlex.quote(sys.executable),
        "interface": request.interface or None,
        "job_directives_skip": ["#"],
        "job_extra_directives": filled,
        "job_script_prologue": [f"export {worker.STARTED}=$(date +%s)", *request.prologue],
        "worker_extra_args": ["--no-dashboard", "--dashboard-address", "127.0.0.1:0", "--preload", worker.__name__],
        "shebang": "#!/bin/bash",
        "local_directory": None,
        "log_directory": None,
    }
    configured = dask.config.get(f"jobqueue.{kind.job_cls.config_name}.scheduler-options", {})
    here = {"interface": request.interface} if _is_here(request.interface) else {"host": None}
    options = {**here, **configured, **ON_LOOPBACK}
    return kind(asynchronous=True, security=make_security(folder), scheduler_options=options, name=name, **arguments)


def _is_here(interface: str) -> bool:
    """Return whether this machine, too, has the interface of the nodes."""
    if interface:
        with suppress(ValueError):
            get_ip_interface(interface)
            return True
    return False


async def _submit(cluster: JobQueueCluster, workers: int) -> None:
    cluster.scale(workers)
    try:
        await cluster
    except (RuntimeError, ValueError, OSError) as error:
        lines = str(error).splitlines()
        said = [line for line in lines if line.strip()]
        raise ConfigError(
            "submission-refused", f"the scheduler did not take the job of a node: {' / '.join(said[-3:])[:400]}"
        ) from error


async def _come(
    cluster: JobQueueCluster,
    ended: asyncio.Event,
    check: Callable[[], None],
    *,
    workers: int,
    minimum: int,
    wait: float,
) -> bool:
    """Wait for the workers, and call ``check`` each minute; return False if this process is to end first.

    Raises:
        NodesError: if too few have come in time.
    """
    start, said, reported = time.monotonic(), -1, 0.0
    while not ended.is_set():
        came, waited = len(cluster.scheduler_info["workers"]), time.monotonic() - start
        if came >= workers:
            return True
        if waited >= wait:
            break
        if came != said or waited - reported >= REPORT:
            said, reported = came, waited
            _say(f"{came} of {workers} nodes, {waited:.0f} s of at most {wait:.0f} s")
            await asyncio.to_thread(check)
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), POLL)
    if ended.is_set():
        return False
    if came < minimum:
        raise NodesError(
            "nodes-missing",
            f"{came} of {workers} nodes have come within {wait:.0f} s (SLIPWAY_WAIT_SECONDS), and {minimum} are the "
            f"least (SLIPWAY_MIN_NODES): all are given back.",
        )
    _say(f"begin with {came} of {workers} nodes; the others are not asked for any more")
    cluster.scale(came)
    await cluster
    return True


def _check_jobs(request: Request, folder: Path, name: str, *, minimum: int) -> None:
    """See whether jobs that wait or run are enough still; a scheduler that does not answer is asked again later.

    Raises:
        ConfigError: if too many have ended, before or after their worker came.
    """
    try:
        left = find_jobs(request, name)
    except ConfigError as error:
        _say(str(error))
        return
    if len(left) < minimum:
        logs = [path for pattern in LOGS for path in folder.glob(pattern)]
        logs.sort(key=lambda path: path.stat().st_mtime)
        lines = logs[-1].read_text(errors="replace").splitlines() if logs else ["there is none"]
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
        raise ConfigError(
            "nodes-lost",
            f"jobs have ended that should hold nodes: {len(left)} are left, and {minimum} are the least "
            f"(SLIPWAY_MIN_NODES). From their last log in {folder}: {' / '.join(errors or lines[-2:])[:500]}",
        )


async def _write_down(cluster: JobQueueCluster, request: Request, folder: Path, *, save: float) -> None:
    """Leave the nodes' addresses and times for the script and its steps, in the order of the nodes' names."""
    async with Client(cluster, asynchronous=True, set_as_default=False) as client:
        seen = await client.run(worker.name_and_age)
    nodes = sorted((name, address, request.seconds - age) for address, (name, age) in seen.items())
    left = min(seconds for *_, seconds in nodes)
    if left <= save:
        raise NodesError(
            "nodes-late",
            f"{left:.0f} s are left of the first node's time of {request.seconds} s, as the others came late, and a "
            f"save may take {save:.0f} s: ask for longer (minutes), or set SLIPWAY_MIN_NODES.",
        )
    Connection(cluster.scheduler_address, [address for _, address, _ in nodes]).write(folder)
    lines = [f"{get_address_host(address)} {name} {seconds:.0f}\n" for name, address, seconds in nodes]
    write_atomically(folder / NODES, "".join(lines))


def _when_ended() -> asyncio.Event:
    """Return what is set by SIGTERM, and when the process that started this one is gone."""
    ended, caller, loop = asyncio.Event(), os.getppid(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)

    def look() -> None:
        if os.getppid() != caller:
            ended.set()
        else:
            loop.call_later(POLL, look)

    look()
    return ended


def _say(text: str) -> None:
    sys.stderr.write(f"dask: {text}\n")
    sys.stderr.flush()
