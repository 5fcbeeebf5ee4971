"""One rank's life: join the world, train, and leave it in good order."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from slipway.base import startup_time
from slipway.base.cause import leave_cause
from slipway.base.environment import Environment, Launcher, World
from slipway.base.errors import SlipwayError, code_of, is_retryable, labelled, message_of, slug_of
from slipway.base.memory_limits import describe_memory, describe_shared_memory
from slipway.base.stop import Reason, StopRequest
from slipway.base.third_party_errors import lost_peer, lost_worker
from slipway.dist.collectives import broadcast_json
from slipway.dist.communicator import Communicator
from slipway.run.run_folder import RunFolder
from trainer.config.settings import Settings
from trainer.parallel.strategy import connect
from trainer.train import run


def run_rank(settings: Settings, request: StopRequest, environment: Environment) -> int:
    """Train as one rank of the world that the launcher made, and return the exit code.

    Raises:
        SlipwayError: if this rank cannot join it.
    """
    launch = settings.launch
    startup_time.mark(startup_time.IMPORTS)
    try:
        comm, strategy = connect(settings, environment, request)
        startup_time.mark(startup_time.RANKS)
        request.answers = comm.world.is_root
    except SlipwayError as error:
        # Ranks that MPI starts do not know their numbers yet; these errors are the same on all of them.
        if launch.output_dir and environment.may_be_root and not error.retryable:
            RunFolder(Path(launch.output_dir)).refuse(error, environment)
        raise
    start_logging(comm.world)
    try:
        reason = run(_name_folder(settings, comm), comm, strategy, request, environment)
    except Exception as error:  # noqa: BLE001 -- it is reported, and the process ends
        if isinstance(error, SlipwayError):
            leave_cause(error, folder=launch.output_dir, variables=environment.variables)
        abandon(error, comm.world)
    return leave(comm, environment, reason)


def leave(comm: Communicator, environment: Environment, reason: Reason) -> int:
    """Leave the world in good order; return the exit code, or, as one of several ranks, end this process with it."""
    comm.close()
    code = environment.exit_code(reason, ranks=comm.world.size)
    alone = comm.world.size == 1 and environment.launcher is not Launcher.TORCHRUN
    return code if alone else _end(code)


def start_logging(world: World) -> None:
    """Let rank 0 tell everything on standard output, and the others only what is wrong with them."""
    logging.basicConfig(
        stream=sys.stdout,
        format="%(message)s" if world.is_root else f"[rank {world.rank}] %(message)s",
    )
    logging.getLogger("trainer").setLevel(logging.INFO if world.is_root else logging.WARNING)
    logging.captureWarnings(capture=True)


def _name_folder(settings: Settings, comm: Communicator) -> Settings:
    """Return ``settings`` with a run folder, the same on all ranks though their clocks may differ."""
    what = f"{settings.data.dataset}-{settings.model.arch}".replace(":", ".")  # of plug-ins
    name = settings.launch.output_dir or f"runs/{what}-{time.strftime('%Y%m%d-%H%M%S')}"
    return replace(settings, launch=replace(settings.launch, output_dir=broadcast_json(comm, name)))


def abandon(error: Exception, world: World) -> NoReturn:
    """Tell of ``error`` and end this process, without waiting for peers that may be gone or stuck.

    So the others notice within seconds: their connections break, and their launcher sees an exit code. A checkpoint
    that is being written is finished first.
    """
    with contextlib.suppress(OSError):  # the terminal is gone
        _report(error, world)
    _end(code_of(error))


def _report(error: Exception, world: World) -> None:
    who = f"trainer: [rank {world.rank}]" if world.rank else "trainer:"
    if isinstance(error, SlipwayError):
        if world.is_root or not error.raised_on_all_ranks:
            print(who, message_of(error), file=sys.stderr)
        return
    known = _in_a_line(error)
    if not known:
        traceback.print_exception(error)
    print(who, labelled("error", slug_of(error), known or f"{type(error).__name__}: {error}"), file=sys.stderr)


def _in_a_line(error: Exception) -> str:
    """Return what ``error``, which is none of ours, means to a user; "" where only its traceback tells."""
    if lost_peer(error):
        said = str(error).partition("\n")[0]
        return f"lost contact with another rank; look for the one that ended first ({said})"
    if worker := lost_worker(error):
        limits = "; ".join([*describe_shared_memory(), *describe_memory()])
        return f"{worker}; {limits}: lower --workers, or ask for more memory"
    if isinstance(error, OSError) and not is_retryable(error):  # a full disk, say
        return str(error)
    return ""


def _end(code: int) -> NoReturn:
    """End this process without taking down the interpreter; ``run`` has waited for the writer of checkpoints.

    There, threads of a communication library that still hold a Python object wait for ever after an error, and with
    torch 2.13 they abort one process in some hundred after success.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            stream.flush()
    os._exit(code)
