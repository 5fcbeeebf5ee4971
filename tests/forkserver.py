"""Start Python programs by forking a process that has imported torch and the trainer, and has run nothing.

The imports take three seconds of CPU, ten times as long as most programs that the tests start. A program started here
ends normally: with atexit handlers, its threads, and tracebacks.

    python -P forkserver.py DESCRIPTOR

serves requests from the socket DESCRIPTOR until it is closed.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

PRELOADED = (
    "torch._dynamo",  # an optimizer's first step imports it
    "trainer.launch.rank",
    "trainer.parallel.ddp",
    "trainer.parallel.single",
    "trainer.results",
    "slipway.session",
)
MOST = 1 << 17
"""Maximum size of a request in bytes."""


class Forked:
    """A program that the server has forked, with the interface of ``subprocess.Popen``."""

    def __init__(
        self, words: Sequence[str], log: Path, environ: Mapping[str, str], folder: Path, preload: Sequence[str] = ()
    ) -> None:
        request = {"words": [*words], "log": str(log), "environ": {**environ}, "folder": str(folder)}
        request["preload"] = [*preload]
        self._status, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(_server(), [json.dumps(request).encode()], [theirs.fileno()])
        self.pid = int(self._status.recv(16))
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: if the program still runs after ``timeout`` seconds.
        """
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = int(self._status.recv(16))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("a forked program", timeout or 0.0) from None
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_connection: socket.socket | None = None


def _server() -> socket.socket:
    """Return the connection to this process's server; the first call starts the server."""
    global _connection
    if _connection is None:
        _connection, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        # Libraries read these when they are loaded.
        environ = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        words = [sys.executable, "-P", __file__, str(theirs.fileno())]
        process = subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        theirs.close()
        atexit.register(process.wait)
        atexit.register(_connection.close)
    return _connection


def serve(connection: socket.socket) -> dict | None:
    """Fork a process for each request; return the request in the fork, and None in the server at the end."""
    waiting: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    _, status = os.waitpid(key.data, 0)
                    with waiting.pop(key.data) as client:
                        _tell(client, os.waitstatus_to_exitcode(status))
                    continue
                message, (*descriptors,), _, _ = socket.recv_fds(connection, MOST, 1)
                if not message:
                    return None
                client = socket.socket(fileno=descriptors[0])
                request = json.loads(message)
                preload(request["preload"])
                pid = os.fork()
                if pid == 0:
                    connection.close()
                    client.close()
                    for other in waiting.values():
                        other.close()
                    return request
                waiting[pid] = client
                _tell(client, pid)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)


def preload(modules: Sequence[str] = PRELOADED) -> None:
    """Import missing ``modules`` and prepare this process for forking."""
    missing = [name for name in modules if name not in sys.modules]
    for name in missing:
        importlib.import_module(name)
    if not missing:
        return
    gc.collect()
    gc.freeze()  # otherwise a fork's first collection copies every page
    for finalizer in [*weakref.finalize._registry]:
        finalizer.atexit = False  # torch destroys its operators: a tenth of a second
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a fork of several threads may wait for ever"


def _tell(client: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the client has ended
        client.send(str(number).encode())


def become(request: dict) -> NoReturn:
    """Turn this fork into a new ``python WORDS`` process and run the program."""
    os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    with Path(os.devnull).open("rb") as nothing, Path(request["log"]).open("ab") as log:
        for number, file in [(0, nothing), (1, log), (2, log)]:
            os.dup2(file.fileno(), number)
    if "PYTHONUNBUFFERED" in os.environ:
        sys.stdout.reconfigure(write_through=True)
    from slipway.rng.seeding import seed_generators  # noqa: PLC0415 -- with torch

    seed_generators(secrets.randbits(63))  # a fork inherits its parent's state
    run_program(request["words"])


def run_program(words: Sequence[str]) -> NoReturn:
    """Run ``-m MODULE``, ``-c CODE`` or ``FILE`` with arguments like Python's command line; exit this process."""
    folders = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    first, *rest = words
    try:
        if first == "-m":
            sys.path[:0] = [str(Path.cwd()), *folders]
            sys.argv[:] = rest
            runpy._run_module_as_main(rest[0])
        elif first == "-c":
            sys.path[:0] = ["", *folders]
            sys.argv[:] = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), vars(module))  # noqa: S102
        else:
            sys.path[:0] = [str(Path(first).parent), *folders]
            sys.argv[:] = words
            module.__file__ = first
            exec(compile(Path(first).read_bytes(), first, "exec"), vars(module))  # noqa: S102
    except SystemExit as leaving:
        end(leaving.code)
    except BaseException as error:  # noqa: BLE001 -- as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        end(1)
    end(0)


def end(code: object) -> NoReturn:
    """Exit this process like the interpreter, but without releasing imported modules, which takes a second."""
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def main(descriptor: int) -> None:
    preload()
    if request := serve(socket.socket(fileno=descriptor)):
        become(request)


if __name__ == "__main__":
    main(int(sys.argv[1]))
