"""What runs on the nodes, in Dask's workers: a command as a process of its own, whose output and end are events.

Dask sends these functions by name, so client and workers need the same version of this module.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import IO

from distributed.core import Status
from distributed.worker import Worker

from distributed import get_worker

STARTED = "SLIPWAY_NODE_STARTED"
"""Variable with the time at which the job of the node began, in seconds since 1970."""
PIECE = 1 << 16
POLL = 0.5
LINGER = 60.0
"""Seconds that processes have to end: after a stop, or when the command has ended and left some behind."""
ENDED = "ended"
ENDING = {Status.stopping, Status.stopped, Status.closing_gracefully, Status.closing, Status.closed, Status.failed}
EXIT = 5.0
"""Seconds that a worker has to exit, once it is closed and what it has started is gone."""
_stops: dict[str, threading.Event] = {}
"""Of each step that runs on this node."""


def dask_setup(worker: Worker) -> None:
    """Watch over ``worker``, which calls this as it starts (``--preload``).

    Dask's own end waits for all of its coroutines, which can be for ever where the connection to the scheduler broke;
    and the shell that the scheduler started for the job may be killed alone, which leaves the worker an orphan.
    """
    threading.Thread(target=_watch, args=(worker, os.getppid()), daemon=True, name="watch").start()


def _watch(worker: Worker, parent: int) -> None:
    """End this process once the worker is closing, or ``parent`` is gone, and no step runs any more."""
    while worker.status not in ENDING and os.getppid() == parent:
        time.sleep(POLL)
    for step in [*_stops]:
        stop(step)
    deadline = time.monotonic() + LINGER
    while _stops and time.monotonic() < deadline:
        time.sleep(POLL)
    time.sleep(EXIT)
    os._exit(1)


def name_and_age() -> tuple[str, float]:
    """Return the name of this node, and how long its job has run, in seconds."""
    return os.uname().nodename, max(0.0, time.time() - float(os.environ.get(STARTED) or time.time()))


def stop(step: str) -> None:
    """Send what ``step`` runs on this node SIGTERM."""
    _stops.setdefault(step, threading.Event()).set()


def run(script: str, number: int, step: str) -> None:
    """Run ``script`` by Bash as node ``number``, and wait for its end; a task of Dask.

    Bash reads it from standard input, which stays open, so that the script has to call exit. One of ``remote_script``
    (jobscripts/lib/nodes.bash) ends its command when that is closed, and so it does when this worker is killed. Output
    comes as events of the topic ``step``, [number, "stdout" or "stderr", text]; the last is [number, "ended", code].
    """
    worker = get_worker()
    stopped = _stops.setdefault(step, threading.Event())
    key = worker.get_current_task()
    with subprocess.Popen(
        ["bash"],
        env={**os.environ, "NODE_RANK": str(number)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    ) as process:
        assert process.stdin, "it is a pipe"
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(script.encode(errors="surrogateescape"))
            process.stdin.flush()
        deadline = None
        for source, text in _output(process):
            if text:
                worker.log_event(step, [number, source, text])
            now = time.monotonic()
            if process.stdin and (stopped.is_set() or _is_over(worker, str(key))):
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                process.stdin = None
            if deadline is None and (process.stdin is None or process.poll() is not None):
                deadline = now + LINGER
            if deadline is not None and now > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                break
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    _stops.pop(step, None)
    worker.log_event(step, [number, ENDED, code])


def _is_over(worker: Worker, key: str) -> bool:
    """Return whether the worker is ending, or who asked for the task is gone."""
    task = worker.state.tasks.get(key)
    return worker.status in ENDING or task is None or task.state != "executing"


def _output(process: subprocess.Popen[bytes]) -> Iterator[tuple[str, str]]:
    """Yield what the process and its children write, by whole lines where they come; "" at least each POLL seconds."""
    streams: dict[IO[bytes], str] = {process.stdout: "stdout", process.stderr: "stderr"}  # type: ignore[dict-item]
    decoders = {name: codecs.getincrementaldecoder("utf-8")(errors="replace") for name in streams.values()}
    rest = dict.fromkeys(streams.values(), "")
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for ready, _ in selector.select(POLL) or []:
                name = streams[ready.fileobj]  # type: ignore[index]
                data = os.read(ready.fd, PIECE)
                if not data:
                    selector.unregister(ready.fileobj)
                text = rest[name] + decoders[name].decode(data, final=not data)
                whole = len(text) if not data or len(text) > PIECE else text.rfind("\n") + 1
                rest[name] = text[whole:]
                yield name, text[:whole]
            yield "", ""
