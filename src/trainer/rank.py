"""One rank's life: join the world, train, and leave it in good order."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from dataclasses import replace
from typing import NoReturn

from slipway.communicator import Communicator
from slipway.communicator.sharing import share_json
from slipway.errors import SlipwayError, is_final
from slipway.layout import EXIT_STOPPED
from slipway.stop import StopRequest
from trainer.config import Settings
from trainer.errors import explain
from trainer.run import run
from trainer.runfolder import refuse
from trainer.strategies import open_ranks

LOST_PEER = (
    "onnection closed by peer",
    "onnection reset by peer",
    "roken pipe",
    "HorovodInternalError",
    "remote process exited",
)
"""What Gloo, Horovod and NCCL say in a rank whose peer is gone."""


def run_rank(settings: Settings, request: StopRequest) -> int:
    """Train as one rank of the world that the launcher made, and return the exit code.

    Raises:
        SlipwayError: if this rank cannot join it.
    """
    try:
        ranks, strategy = open_ranks(settings)
    except SlipwayError as error:
        refuse(settings.launch, error)
        raise
    _start_logging(ranks.world.rank)
    try:
        status = run(_name_folder(settings, ranks), ranks, strategy, request)
    except Exception as error:  # noqa: BLE001 -- it is reported, and the process ends
        _abandon(error, ranks)
    ranks.close()
    alone = ranks.world.size == 1 and "TORCHELASTIC_RUN_ID" not in os.environ
    # Other launchers would take a code other than 0 for a failure, and kill ranks that still save.
    code = EXIT_STOPPED if status.state == "stopped" and (alone or "TRAINER_SPAWNED" in os.environ) else 0
    return code if alone else _leave(code)


def _start_logging(rank: int) -> None:
    """Let rank 0 tell everything on standard output, and the others only what is wrong with them."""
    logging.basicConfig(
        stream=sys.stdout,
        format="%(message)s" if rank == 0 else f"[rank {rank}] %(message)s",
    )
    logging.getLogger("trainer").setLevel(logging.INFO if rank == 0 else logging.WARNING)
    logging.captureWarnings(capture=True)


def _name_folder(settings: Settings, ranks: Communicator) -> Settings:
    """Return ``settings`` with a run folder, the same on all ranks though their clocks may differ."""
    what = f"{settings.data.dataset}-{settings.model.arch}".replace(":", ".")  # of plug-ins
    name = settings.launch.output_dir or f"runs/{what}-{time.strftime('%Y%m%d-%H%M%S')}"
    return replace(settings, launch=replace(settings.launch, output_dir=share_json(ranks, name)))


def _abandon(error: Exception, ranks: Communicator) -> NoReturn:
    """Tell of ``error`` and end this process, without waiting for peers that may be gone or stuck.

    So the others notice within seconds: their connections break, and their launcher sees an exit code. A checkpoint
    that is being written is finished first.
    """
    world = ranks.world
    who = f"trainer: [rank {world.rank}]" if world.rank else "trainer:"
    code = getattr(error, "exit_code", SlipwayError.exit_code)
    if isinstance(error, SlipwayError):
        if world.rank == 0 or not error.everywhere:
            print(who, explain(error), file=sys.stderr)
    elif any(text in f"{type(error).__name__} {error}" for text in LOST_PEER):
        said = str(error).partition("\n")[0]
        print(who, f"lost contact with another rank; look for the one that ended first ({said})", file=sys.stderr)
    elif isinstance(error, OSError) and is_final(error):  # a full disk, say
        print(who, error, file=sys.stderr)
    else:
        traceback.print_exception(error)
        print(who, f"{type(error).__name__}: {error}", file=sys.stderr)
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End this process without taking down the interpreter.

    There, threads of a communication library that still hold a Python object wait for ever after an error, and with
    torch 2.13 they abort one process in some hundred after success.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
