"""Entry point of a rank: connect to the other ranks, train, and shut down."""

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
from slipway.base.environment import Environment, Launcher, World
from slipway.base.errors import SlipwayError, add_label, code_of, error_line, is_retryable, slug_of
from slipway.base.memory_limits import describe_memory, describe_shared_memory
from slipway.base.stop import Reason, StopRequest
from slipway.base.third_party_errors import lost_peer, lost_worker
from slipway.dist.collectives import broadcast_json
from slipway.dist.communicator import Communicator
from slipway.run.cause import write_cause
from slipway.run.run_folder import RunFolder
from trainer.config.settings import Settings
from trainer.parallel.strategy import connect
from trainer.train import run


def run_rank(settings: Settings, request: StopRequest, environment: Environment) -> int:
    """Train as one of the ranks that the launcher started, and return the exit code.

    Raises:
        SlipwayError: if this rank cannot connect to the others.
    """
    launch = settings.launch
    startup_time.mark(startup_time.IMPORTS)
    try:
        comm, strategy = connect(settings, environment, request)
        startup_time.mark(startup_time.RANKS)
        request.answers = comm.world.is_root
    except SlipwayError as error:
        # Ranks started by MPI do not have their numbers yet; these errors are the same on all ranks.
        if launch.output_dir and environment.may_be_root and not error.retryable:
            RunFolder(Path(launch.output_dir)).refuse(error, environment)
        raise
    start_logging(comm.world)
    try:
        reason = run(_name_folder(settings, comm), comm, strategy, request, environment)
    except Exception as error:  # noqa: BLE001 -- abort_rank() reports it and ends the process
        if isinstance(error, SlipwayError):
            write_cause(error, folder=launch.output_dir, variables=environment.variables)
        abort_rank(error, comm.world)
    return finish_rank(comm, environment, reason)


def finish_rank(comm: Communicator, environment: Environment, reason: Reason) -> int:
    """Close ``comm`` and return the exit code; if there are several ranks, end this process with it instead."""
    comm.close()
    code = environment.exit_code(reason, ranks=comm.world.size)
    alone = comm.world.size == 1 and environment.launcher is not Launcher.TORCHRUN
    return code if alone else _end(code)


def start_logging(world: World) -> None:
    """Make rank 0 log everything on standard output, and the other ranks only warnings and errors."""
    logging.basicConfig(
        stream=sys.stdout,
        format="%(message)s" if world.is_root else f"[rank {world.rank}] %(message)s",
    )
    logging.getLogger("trainer").setLevel(logging.INFO if world.is_root else logging.WARNING)
    logging.captureWarnings(capture=True)


def _name_folder(settings: Settings, comm: Communicator) -> Settings:
    """Return ``settings`` with a run folder, the same on all ranks even if their clocks differ."""
    what = f"{settings.data.dataset}-{settings.model.arch}".replace(":", ".")  # plugin names contain ":"
    name = settings.launch.output_dir or f"runs/{what}-{time.strftime('%Y%m%d-%H%M%S')}"
    return replace(settings, launch=replace(settings.launch, output_dir=broadcast_json(comm, name)))


def abort_rank(error: Exception, world: World) -> NoReturn:
    """Report ``error`` and end this process without waiting for peers, which may have ended or hang.

    The other ranks notice within seconds, because their connections break, and the launcher receives an exit code.
    ``run`` has already finished any checkpoint being written.
    """
    with contextlib.suppress(OSError):  # the terminal is gone
        _report(error, world)
    _end(code_of(error))


def _report(error: Exception, world: World) -> None:
    who = f"trainer: [rank {world.rank}]" if world.rank else "trainer:"
    if isinstance(error, SlipwayError):
        if world.is_root or not error.raised_on_all_ranks:
            print(who, error_line(error), file=sys.stderr)
        return
    known = _known_error_message(error)
    if not known:
        traceback.print_exception(error)
    print(who, add_label("error", slug_of(error), known or f"{type(error).__name__}: {error}"), file=sys.stderr)


def _known_error_message(error: Exception) -> str:
    """Return a one-line message for a known ``error`` of other libraries; "" if the traceback must explain it."""
    if lost_peer(error):
        said = str(error).partition("\n")[0]
        return f"lost the connection to another rank; find the rank that ended first ({said})"
    if worker := lost_worker(error):
        limits = "; ".join([*describe_shared_memory(), *describe_memory()])
        return f"{worker}; {limits}: lower --workers, or request more memory"
    if isinstance(error, OSError) and not is_retryable(error):  # for example a full disk
        return str(error)
    return ""


def _end(code: int) -> NoReturn:
    """End this process without finalizing the interpreter; ``run`` has waited for the checkpoint writer.

    During finalization, threads of a communication library that still hold a Python object wait forever after an
    error, and with torch 2.13 they abort about one process in some hundred after success.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            stream.flush()
    os._exit(code)
