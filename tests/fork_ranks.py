"""Start a program's ranks on this machine by forking, with the environment variables and names of a job script.

    python fork_ranks.py RANKS PROGRAM...

If a rank fails, the others are ended; the exit code is that of the first failed rank.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path

GRACE = 30.0
"""Seconds that ranks may take to end after another rank has failed."""


def main(ranks: int) -> int | None:
    """Start the ranks and return the exit code; in a rank, return None."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    running = {}
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            Path("/proc/self/comm").write_text(f"trainer-rank{rank}")
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            os.environ |= {name: str(value) for name, value in names.items()}
            return None
        running[pid] = rank
    signal.signal(signal.SIGTERM, lambda number, _: _signal(running, number))
    code, deadline = 0, None
    while running:
        if deadline and time.monotonic() > deadline:
            _signal(running, signal.SIGKILL)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            time.sleep(0.02)
            continue
        del running[pid]
        failed = os.waitstatus_to_exitcode(status)
        if failed and not code:
            code, deadline = failed if failed > 0 else 128 - failed, time.monotonic() + GRACE
            _signal(running, signal.SIGTERM)
    return code


def _signal(running: dict[int, int], number: int) -> None:
    for pid in running:
        os.kill(pid, number)


if __name__ == "__main__":
    code = main(int(sys.argv[1]))
    if code is not None:
        sys.exit(code)
    import forkserver

    forkserver.run_program(sys.argv[2:])
