"""The process that requests nodes and holds them: Dask's scheduler and its workers' jobs."""

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
"""Seconds that a worker tries to reach the scheduler before its job ends."""
LEEWAY = 120
"""Seconds added to wait time and time limit for {last}, the deadline at which Slurm removes a job that still waits."""
SILENCE = "60 s"
"""Time without a heartbeat after which Dask counts a worker as lost: its node may be without power."""
POLL = 0.5
REPORT = 60.0
"""Seconds between two lines of progress."""
LOGS = ("*.log", "*.OU", "*.ER")
"""Log files of the nodes' jobs: Slurm's as the request sets, PBS's standard output and error as in qsub(1)."""
ON_LOOPBACK = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""No dashboard; Dask opens a small HTTP server anyway."""


async def hold(folder: Path, *, workers: int, minimum: int, wait: float, save: float) -> int:
    """Request nodes, write the list of those that arrived, and hold them until SIGTERM or the caller's end.

    Args:
        folder: of the request, on a disk that all nodes share.
        workers: number of nodes to request.
        minimum: fewest nodes with which training may begin after ``wait``.
        wait: seconds to wait for all nodes.
        save: each node must have more than this many seconds left after the wait.

    Raises:
        ConfigError: if the scheduler refuses a job.
        NodesError: if fewer than ``minimum`` nodes arrived in time, or if too little time is left.
    """
    ended = _end_event()
    logging.getLogger("distributed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="Couldn't detect a suitable IP")  # on a host without internet access
    request = Request.read(folder)
    _require_commands(request)
    name = new_name(folder)
    dask.config.set({"distributed.scheduler.worker-ttl": SILENCE})
    try:
        async with _cluster(request, folder, name, wait=wait) as cluster:
            await _submit(cluster, workers)
            check = partial(_check_jobs, request, folder, name, minimum=minimum)
            if await _wait_for_workers(cluster, ended, check, workers=workers, minimum=minimum, wait=wait):
                await _write_nodes(cluster, request, folder, save=save)
                await ended.wait()
    finally:
        remove_key(folder)
        cancel_jobs(request, folder)
    return 0


def _require_commands(request: Request) -> None:
    """Check that this machine has the scheduler's commands.

    Raises:
        ConfigError: if one is missing.
    """
    submit = str(getattr(dask_jobqueue, request.cluster).job_cls.submit_command).split()[0]
    for command in (submit, request.find[0], request.cancel[0]):
        if not shutil.which(command):
            raise ConfigError(
                "no-scheduler-command", f"this machine has no {command}: start the client on a submit host."
            )


def _cluster(request: Request, folder: Path, name: str, *, wait: float) -> JobQueueCluster:
    """Return the cluster, not yet started.

    Its jobs have only the request's directives (``job_directives_skip``): Dask-Jobqueue's own directives would request
    memory but no GPUs.
    """
    kind = getattr(dask_jobqueue, request.cluster)
    known = {"{name}": name, "{logs}": str(folder), "{last}": f"{wait + request.seconds + LEEWAY:.0f}"}
    filled = [re.sub(r"\{\w+\}", lambda found: known.get(found[0], found[0]), line) for line in request.directives]
    arguments: dict[str, Any] = {
        "cores": 4,  # threads of a worker: as many steps may run at once
        "memory": "1 GiB",  # of the worker itself; ranks are separate processes
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
    """Return whether this machine also has the nodes' network interface."""
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
            "submission-refused", f"the scheduler refused a node's job: {' / '.join(said[-3:])[:400]}"
        ) from error


async def _wait_for_workers(
    cluster: JobQueueCluster,
    ended: asyncio.Event,
    check: Callable[[], None],
    *,
    workers: int,
    minimum: int,
    wait: float,
) -> bool:
    """Wait for the workers, and call ``check`` each minute; return False if ``ended`` is set first.

    Raises:
        NodesError: if too few workers arrived in time.
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
            f"{came} of {workers} nodes arrived within {wait:.0f} s (SLIPWAY_WAIT_SECONDS), fewer than the minimum of "
            f"{minimum} (SLIPWAY_MIN_NODES). All nodes are released.",
        )
    _say(f"starting with {came} of {workers} nodes; requests for the others are canceled")
    cluster.scale(came)
    await cluster
    return True


def _check_jobs(request: Request, folder: Path, name: str, *, minimum: int) -> None:
    """Check that enough jobs wait or run; if the scheduler does not answer, report it and return.

    Raises:
        ConfigError: if too many jobs have ended, before or after their worker arrived.
    """
    try:
        left = find_jobs(request, name)
    except ConfigError as error:
        _say(str(error))
        return
    if len(left) < minimum:
        logs = [path for pattern in LOGS for path in folder.glob(pattern)]
        logs.sort(key=lambda path: path.stat().st_mtime)
        lines = logs[-1].read_text(errors="replace").splitlines() if logs else ["no log found"]
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
        raise ConfigError(
            "nodes-lost",
            f"jobs that should hold nodes have ended: {len(left)} remain, fewer than the minimum of {minimum} "
            f"(SLIPWAY_MIN_NODES). From their last log in {folder}: {' / '.join(errors or lines[-2:])[:500]}",
        )


async def _write_nodes(cluster: JobQueueCluster, request: Request, folder: Path, *, save: float) -> None:
    """Write the nodes' addresses and remaining times for the job script and its steps, ordered by node name."""
    async with Client(cluster, asynchronous=True, set_as_default=False) as client:
        seen = await client.run(worker.name_and_age)
    nodes = sorted((name, address, request.seconds - age) for address, (name, age) in seen.items())
    left = min(seconds for *_, seconds in nodes)
    if left <= save:
        raise NodesError(
            "nodes-late",
            f"the nodes arrived too far apart: the first one has {left:.0f} s left of {request.seconds} s, and a save "
            f"may take {save:.0f} s. Request more time (minutes), or set SLIPWAY_MIN_NODES.",
        )
    Connection(cluster.scheduler_address, [address for _, address, _ in nodes]).write(folder)
    lines = [f"{get_address_host(address)} {name} {seconds:.0f}\n" for name, address, seconds in nodes]
    write_atomically(folder / NODES, "".join(lines))


def _end_event() -> asyncio.Event:
    """Return an event that SIGTERM, SIGINT, SIGHUP or the end of the parent process sets."""
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
