"""``--nproc-per-node N`` or auto: start ranks on this machine without torchrun."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

from slipway.base import startup_time
from slipway.base.contract import CAUSE_CODES, EXIT_STOPPED
from slipway.base.environment import Environment, read_environment
from slipway.base.errors import SlipwayError, add_label
from slipway.base.memory_limits import describe_memory
from slipway.base.stop import SIGNALS, Reason, StopRequest, set_parent_death_signal
from slipway.run.cause import write_cause
from trainer.config.errors import ConfigError, TrainerError
from trainer.config.settings import Settings
from trainer.launch.exits import run_to_exit_code

Work = Callable[[Settings, StopRequest, Environment], int]
"""Function that a rank runs; it must be picklable and returns the exit code."""
POLL = 0.1
"""Seconds between two checks of the ranks."""
RANKS_PER_CPU = 8
"""Most ranks per CPU; more are probably a typo, and would take all memory and hours to start."""
GRACE = 30.0
"""Seconds that ranks have to end (for example to save) after another rank has failed, before they are killed."""


def spawn(work: Work, settings: Settings, request: StopRequest, environment: Environment) -> int:
    """Run ``work`` on the number of ddp ranks in ``settings``; return the exit code of the first failure, or 75 or 0.

    The ranks connect through a file, so this opens no port. ``spawn`` forwards a stop request to all ranks. This
    process imports what the ranks need, and then forks them if that is safe.

    Raises:
        ConfigError: if the settings ask for another backend, for far more ranks than CPUs, or for more ranks than GPUs,
            or if another launcher has started this process.
    """
    if settings.launch.backend not in ("auto", "ddp"):
        raise ConfigError(
            "conflicting-settings", f"--nproc-per-node starts ddp ranks, not {settings.launch.backend} ranks."
        )
    if found := environment.siblings:
        raise ConfigError(
            "nested-launch",
            f"cannot use --nproc-per-node under another launcher ({found.variable} is set): each of its ranks would "
            "start ranks.",
        )
    ranks = _ranks(settings)
    request.answers = False  # rank 0 does
    context = _import_for_ranks()
    with tempfile.TemporaryDirectory(prefix="trainer-") as folder:
        launch = replace(
            settings.launch, backend="ddp", init_method=Path(folder, "store").as_uri(), nproc_per_node=None
        )
        settings = replace(settings, launch=launch)
        processes: list[BaseProcess] = [
            context.Process(target=_run_rank, args=(work, settings, rank, ranks, os.getpid())) for rank in range(ranks)
        ]
        _start(processes)
        try:
            code = _watch(processes, request)
        finally:
            _end(processes)
    # A rank that found the cause may end after the ranks that failed because of it.
    return next((process.exitcode for process in processes if process.exitcode in CAUSE_CODES), code)


def train(settings: Settings, request: StopRequest, environment: Environment) -> int:
    """Train as one rank and return the exit code; see ``trainer.launch.rank.run_rank``."""
    from trainer.launch.rank import run_rank  # noqa: PLC0415 -- with torch

    on_error = partial(write_cause, folder=settings.launch.output_dir, variables=environment.variables)
    return run_to_exit_code(lambda: run_rank(settings, request, environment), on_error=on_error)


def _start(processes: Sequence[BaseProcess]) -> None:
    """Start all ranks, or none.

    Raises:
        TrainerError: if a rank cannot be started.
    """
    # A rank starts with these signals blocked, and unblocks them after it has installed its handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        for process in processes:
            process.start()
    except OSError as error:
        started = [process for process in processes if process.pid]
        for process in started:  # they wait for the missing ranks
            process.kill()
            process.join()
        raise TrainerError(
            "cannot-start-rank",
            f"cannot start rank {len(started)}: {error.strerror} (too many processes, or too little memory).",
        ) from error
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _import_for_ranks() -> ForkContext | SpawnContext:
    """Import the modules that ranks need, and return the start method for multiprocessing: fork if that is safe.

    A fork does not copy threads, but it copies the locks that they hold, and a rank would wait for these forever. So
    fork only if this process has no other threads.
    """
    # An optimizer's first step imports torch._dynamo, which takes as long as all other imports together.
    _import("torch._dynamo", "trainer.launch.rank", "trainer.parallel.ddp")
    startup_time.mark(startup_time.IMPORTS)
    if len([*Path("/proc/self/task").iterdir()]) == 1:
        return multiprocessing.get_context("fork")
    resource_tracker.ensure_running()  # spawning needs it; if started later, it would unblock signals
    return multiprocessing.get_context("spawn")


def _import(*names: str) -> None:
    """Import modules without starting threads in their libraries; each rank sets its thread count through torch."""
    before = dict(os.environ)
    # OpenMP and OpenBLAS read these variables when they are loaded.
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run_rank(work: Work, settings: Settings, rank: int, ranks: int, launcher: int) -> NoReturn:
    """Run ``work`` as one rank, and end this child process; ``launcher`` is the parent's process ID."""
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != launcher:  # the launcher died before the call above
        os._exit(EXIT_STOPPED)
    os.environ |= _variables(rank, ranks)
    Path("/proc/self/comm").write_text(f"trainer-rank{rank}", encoding="utf-8")  # shown by ps and top
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)  # a fork inherits its parent's handlers
    request = StopRequest()
    request.listen()

    def run() -> int:
        from slipway.rng.seeding import seed_generators  # noqa: PLC0415 -- with torch

        seed_generators(secrets.randbits(63))  # a fork inherits its parent's state
        return work(settings, request, read_environment(os.environ))

    sys.exit(run_to_exit_code(run))


def _ranks(settings: Settings) -> int:
    """Return the number of ranks to start.

    Raises:
        ConfigError: if there are too few CPUs or GPUs for the ranks.
    """
    number = settings.launch.nproc_per_node or 1
    if number != "auto":
        _require_cpus(number)
        if settings.launch.device == "cpu":
            return number
    _import("trainer.parallel.device")  # here, not in the child: it imports torch, which the ranks need anyway
    startup_time.mark(startup_time.IMPORTS)
    ranks = _run_in_fork(_ranks_for_gpus, settings)
    startup_time.mark(startup_time.DEVICE)
    _require_cpus(ranks)
    return ranks


def _run_in_fork(function: Callable[[Settings], int], settings: Settings) -> int:
    """Call ``function`` in a child process and return its result.

    A process that has opened a GPU must not fork, so the child opens it. The child is a fork, so it keeps the signal
    handlers. This process waits for it without a thread, because a process with threads must not fork either.

    Raises:
        TrainerError: if the child ends without a result. An error that ``function`` raises is raised here.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(function, settings, sender))
    process.start()
    sender.close()
    try:
        answer = receiver.recv()
    except EOFError:
        answer = None
    process.join()
    match answer:
        case int():
            return answer
        case Exception():
            raise answer
    raise TrainerError(
        "broken-gpu", f"the process that counts GPUs ended with exit code {process.exitcode}: check the driver."
    )


def _answer(function: Callable[[Settings], int], settings: Settings, sender: Connection) -> None:
    try:
        sender.send(function(settings))
    except SlipwayError as error:
        sender.send(error)


def _require_cpus(ranks: int) -> None:
    cpus = len(os.sched_getaffinity(0))
    if ranks > (most := RANKS_PER_CPU * cpus):
        raise ConfigError(
            "too-few-cpus", f"--nproc-per-node {ranks}: this process has {cpus} CPU(s), enough for {most} ranks."
        )


def _ranks_for_gpus(settings: Settings) -> int:
    from trainer.parallel.device import ranks_for_gpus, require_gpus  # noqa: PLC0415 -- torch is slow to import

    number = settings.launch.nproc_per_node or 1
    if number == "auto":
        return ranks_for_gpus(settings)
    require_gpus(settings, number)
    return number


def _variables(rank: int, ranks: int) -> dict[str, str]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "TRAINER_WORLD_SIZE": ranks, "TRAINER_SPAWNED": 1}
    # On one machine the loopback interface always works, while the host name may not resolve.
    return {"GLOO_SOCKET_IFNAME": "lo"} | os.environ | {name: str(value) for name, value in place.items()}


def _watch(processes: Sequence[BaseProcess], request: StopRequest) -> int:
    """Wait until all ranks have ended or one has failed, and forward stop requests; return the exit code."""
    forwarded = Reason.NONE
    while True:
        codes = [process.exitcode for process in processes]
        failed = [(code, rank) for rank, code in enumerate(codes) if code not in (None, 0, EXIT_STOPPED)]
        if failed:
            code, rank = min(failed)  # prefer a rank killed by a signal: the others may have failed because of it
            if code < 0 and not request.reason:  # a killed rank cannot report it
                _warn_of_killed_rank(rank, signal.Signals(-code))
            return code if code > 0 else 128 - code
        ended = [code for code in codes if code is not None]
        if len(ended) == len(codes):
            return max(ended)
        if request.reason != forwarded:
            forwarded = request.reason
            for process in processes:
                if process.is_alive() and process.pid:
                    os.kill(process.pid, forwarded.signal)
        time.sleep(POLL)


def _warn_of_killed_rank(rank: int, number: signal.Signals) -> None:
    memory = f"; {'; '.join(describe_memory())}" if number in {signal.SIGKILL, signal.SIGBUS} else ""
    said = add_label("warning", "rank-killed", f"rank {rank} was killed by {number.name}{memory}")
    sys.stderr.write(f"trainer: {said}\n")


def _end(processes: Sequence[BaseProcess]) -> None:
    """Send SIGTERM to the remaining ranks, and kill those that are still alive after GRACE seconds."""
    for process in processes:
        if process.is_alive() and process.pid:
            os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
