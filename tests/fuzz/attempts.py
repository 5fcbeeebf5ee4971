"""Attempts of a script: forks of this process, which has imported torch but computed nothing."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import forkserver

HERE = Path(__file__).resolve().parent
LIMIT = 40.0
"""Seconds after which an attempt counts as hung."""
GRACE = 5.0
"""Seconds in which ranks must end after another one has failed."""

Place = tuple[int, str, tuple[int, ...]]
"""A rank, and the key of a trace line."""


class Attempt(NamedTuple):
    """Result of an attempt."""

    codes: list[int]
    """Of each rank; negative for a signal, None if the rank hung."""
    output: str
    trace: dict[Place, object]
    twice: list[Place]
    """Trace entries that occur twice with different values."""
    killed: bool
    """Whether the kill took place."""
    ended: list[int]
    """Points, renames, and renames of a checkpoint to the latest, of rank 0, if the script reached its end."""
    hung: bool
    seconds: float

    @property
    def failed(self) -> bool:
        """Whether a rank ended with an error or was killed."""
        return any(code not in {0, 75} for code in self.codes)


def attempt(script: Path, folder: Path, *, ranks: int, kill: str = "") -> Attempt:
    """Run ``script`` in the run folder ``folder``, and end it as ``kill`` says."""
    began, traces, log = (
        time.monotonic(),
        folder.with_name(f"{folder.name}.trace"),
        folder.with_name(f"{folder.name}.log"),
    )
    for stale in [log, *(Path(f"{traces}.{rank}") for rank in range(ranks))]:
        stale.unlink(missing_ok=True)
    environ = os.environ | {
        "RUN_DIR": str(folder),
        "FUZZ_TRACE": str(traces),
        "FUZZ_KILL": kill if "@" in kill else "",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    worlds = [environ] if ranks == 1 else [environ | variables for variables in _world(ranks)]
    pids = [_fork(script, log, variables) for variables in worlds]
    codes, hung = _wait(pids, began, kill if "~" in kill else "")
    trace: dict[Place, object] = {}
    twice: list[Place] = []
    killed, ended = "~" in kill, []
    for rank in range(ranks):
        for site, entry in _lines(Path(f"{traces}.{rank}")):
            if site == "killed":
                killed = True
            elif site == "ended":
                ended = entry if rank == 0 else ended
            else:
                place = rank, site, tuple(entry[0])
                if trace.setdefault(place, entry[1]) != entry[1]:
                    twice.append(place)
    output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return Attempt(codes, output, trace, twice, killed, ended, hung, time.monotonic() - began)


def _lines(path: Path) -> list[list]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _world(ranks: int) -> list[dict[str, str]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    names |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return [
        {name: str(value) for name, value in (names | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        for rank in range(ranks)
    ]


def _fork(script: Path, log: Path, environ: dict[str, str]) -> int:
    pid = os.fork()
    if pid == 0:
        words = [str(script)]
        forkserver.become({"folder": str(script.parent), "environ": environ, "log": str(log), "words": words})
    return pid


def _wait(pids: list[int], began: float, kill: str) -> tuple[list[int], bool]:
    """Wait for all processes and end their children; return the exit codes, and whether they hung."""
    codes: dict[int, int] = {}
    watched = {os.pidfd_open(pid): pid for pid in pids}
    way, _, after = kill.rpartition("~")
    kill_at = began + float(after) if kill else math.inf
    deadline, hung = began + LIMIT, False
    while watched:
        limit = max(0.0, min(deadline, kill_at) - time.monotonic())
        ready, _, _ = select.select([*watched], [], [], limit)
        for descriptor in ready:
            pid = watched.pop(descriptor)
            os.close(descriptor)
            codes[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if codes[pid] not in {0, 75}:
                deadline = min(deadline, time.monotonic() + GRACE)
        if not ready:
            hung = hung or (time.monotonic() > deadline and not codes)
            _signal(watched.values(), "KILL" if time.monotonic() > deadline else way)
            kill_at = math.inf
    for pid in pids:  # each began a session: its workers
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return [codes[pid] for pid in pids], hung


def _signal(pids: Iterable[int], way: str) -> None:
    for pid in pids:
        os.kill(pid, signal.Signals[f"SIG{way}"])
