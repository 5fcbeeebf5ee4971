"""``--nproc-per-node N``, or auto: ranks on this machine, without torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slipway.environment import Environment
from slipway.layout import EXIT_STOPPED
from slipway.memory_limits import describe_memory
from slipway.stop import SIGNALS, Reason, StopRequest, signal_on_parents_death
from trainer.config import Settings
from trainer.errors import ConfigError

POLL = 0.1
"""Seconds between two looks at the ranks."""
RANKS_PER_CPU = 8
"""More on one are a slip of the fingers: they take all memory, and hours to start."""
GRACE = 30.0
"""Seconds that ranks may take to end after another rank has failed, before they are killed."""


def spawn(argv: list[str], settings: Settings, request: StopRequest, environment: Environment) -> int:
    """Run ``trainer ARGV`` as the ddp ranks that ``settings`` ask for; return the code of one that failed, or 75 or 0.

    The ranks meet at a file, so no port is opened for that. A request to stop is passed on to all of them.

    Raises:
        ConfigError: if ranks of another backend are asked for, or far more than there are CPUs, if another launcher has
            started this process, or if there is no GPU for ranks whose number is auto.
    """
    if settings.launch.backend not in ("auto", "ddp"):
        raise ConfigError(f"--nproc-per-node starts ddp ranks, not {settings.launch.backend} ones.")
    if found := environment.siblings:
        raise ConfigError(
            f"--nproc-per-node under another launcher ({found.variable} is set) would start ranks of ranks."
        )
    ranks = _ranks(settings)
    cpus = len(os.sched_getaffinity(0))
    if ranks > (most := RANKS_PER_CPU * cpus):
        raise ConfigError(f"--nproc-per-node {ranks}: with {cpus} CPU(s), at most {most} ranks can be started.")
    request.answers = False  # rank 0 does
    with tempfile.TemporaryDirectory(prefix="trainer-") as folder:
        rendezvous = Path(folder, "store").as_uri()
        flags = ["--backend", "ddp", "--init-method", rendezvous, "--nproc-per-node", "0"]
        end = argv.index("--") if "--" in argv else len(argv)
        command = [sys.executable, "-m", "trainer", *argv[:end], *flags, *argv[end:]]
        # A rank starts with these signals blocked and takes them once it listens: none can hit it before.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        processes = [
            subprocess.Popen(command, env=_variables(rank, ranks), preexec_fn=_die_with_parent)  # noqa: PLW1509
            for rank in range(ranks)
        ]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        try:
            return _watch(processes, request)
        finally:
            _end(processes)


def _ranks(settings: Settings) -> int:
    number = settings.launch.nproc_per_node or 1
    if number == "auto":
        from trainer.device import ranks_for_gpus  # noqa: PLC0415 -- torch counts the GPUs, and is slow to import

        return ranks_for_gpus(settings)
    return number


def _variables(rank: int, ranks: int) -> dict[str, str]:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "TRAINER_WORLD_SIZE": ranks, "TRAINER_SPAWNED": 1}
    # One machine: its loopback interface always works, its host name need not resolve.
    return {"GLOO_SOCKET_IFNAME": "lo"} | os.environ | {name: str(value) for name, value in place.items()}


def _die_with_parent() -> None:
    """Let the kernel kill this rank when its launcher dies, even by SIGKILL."""
    signal_on_parents_death(signal.SIGKILL)


def _watch(processes: list[subprocess.Popen[bytes]], request: StopRequest) -> int:
    """Wait until all ranks have ended, or one has failed, passing on requests to stop."""
    passed_on = Reason.NONE
    while True:
        codes = [process.poll() for process in processes]
        failed = [(code, rank) for rank, code in enumerate(codes) if code not in (None, 0, EXIT_STOPPED)]
        if failed:
            code, rank = min(failed)  # one that a signal has ended, if any: the others fail because of it
            if code < 0 and not request.reason:  # nobody else can tell of it
                _tell_of_signal(rank, signal.Signals(-code))
            return code if code > 0 else 128 - code
        ended = [code for code in codes if code is not None]
        if len(ended) == len(codes):
            return max(ended)
        if request.reason != passed_on:
            passed_on = request.reason
            for process in processes:
                process.send_signal(passed_on.signal)
        time.sleep(POLL)


def _tell_of_signal(rank: int, number: signal.Signals) -> None:
    memory = f"; {'; '.join(describe_memory())}" if number in {signal.SIGKILL, signal.SIGBUS} else ""
    sys.stderr.write(f"trainer: rank {rank} was killed by {number.name}{memory}\n")


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Give the ranks that are left some time to end by themselves, then kill them."""
    deadline = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
