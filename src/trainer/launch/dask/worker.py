"""Functions that run in Dask's workers: a step's command as a child process, with output and end as Dask events.

Dask sends these functions by name, so the client and the workers need the same version of this module.
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
"""Variable with the time at which the node's job began, in seconds since 1970."""
PIECE = 1 << 16
POLL = 0.5
END_GRACE = 60.0
"""Seconds that processes have to end after a stop, or after a command that left processes running."""
ENDED = "ended"
ENDING = {Status.stopping, Status.stopped, Status.closing_gracefully, Status.closing, Status.closed, Status.failed}
EXIT = 5.0
"""Seconds that a worker has to exit after it is closed and its commands have ended."""
_stops: dict[str, threading.Event] = {}
"""Stop event of each step that runs on this node."""


def dask_setup(worker: Worker) -> None:
    """Start a thread that ends ``worker`` reliably; Dask calls this at the worker's start (``--preload``).

    Dask's own shutdown waits for all of its coroutines, forever if the connection to the scheduler broke. And if only
    the job's shell is killed, the worker is orphaned.
    """
    threading.Thread(target=_watch, args=(worker, os.getppid()), daemon=True, name="watch").start()


def _watch(worker: Worker, parent: int) -> None:
    """End this process after the worker is closing or ``parent`` has ended, and the steps have stopped."""
    while worker.status not in ENDING and os.getppid() == parent:
        time.sleep(POLL)
    for step in [*_stops]:
        stop(step)
    deadline = time.monotonic() + END_GRACE
    while _stops and time.monotonic() < deadline:
        time.sleep(POLL)
    time.sleep(EXIT)
    os._exit(1)


def name_and_age() -> tuple[str, float]:
    """Return this node's name and the seconds that its job has run."""
    return os.uname().nodename, max(0.0, time.time() - float(os.environ.get(STARTED) or time.time()))


def stop(step: str) -> None:
    """Stop the command of ``step`` on this node: its standard input is closed, so the script ends it."""
    _stops.setdefault(step, threading.Event()).set()


def run(script: str, number: int, step: str) -> None:
    """Run ``script`` with Bash as node ``number``, and wait for its end; a Dask task.

    Bash reads the script from standard input, which stays open, so the script must call exit. A script made by
    ``remote_script`` (jobscripts/lib/nodes.bash) ends its command when standard input is closed, also by the death of
    this worker. Output is sent as events of the topic ``step``: [number, "stdout" or "stderr", text]. The last event
    is [number, "ended", code].
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
                deadline = now + END_GRACE
            if deadline is not None and now > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                break
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    _stops.pop(step, None)
    worker.log_event(step, [number, ENDED, code])


def _is_over(worker: Worker, key: str) -> bool:
    """Return whether the worker is ending, or the client that submitted the task has left."""
    task = worker.state.tasks.get(key)
    return worker.status in ENDING or task is None or task.state != "executing"


def _output(process: subprocess.Popen[bytes]) -> Iterator[tuple[str, str]]:
    """Yield (stream, text) in whole lines as the process and its children write, and "" at least each POLL seconds."""
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
