"""free_port.py ANSWER FIRST: write to the file ANSWER the first TCP port from FIRST on that can be bound here.

The port must be free on all interfaces. Ports of the machine's ephemeral range are tried last, because clients can get
them at any moment. Standard library only.
"""

import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # PYTHONSAFEPATH omits it
sys.dont_write_bytecode = True  # the run folder's library is compared to others, and may be read-only

from answer import write_answer  # noqa: E402

SPAN = 2000
"""Number of ports to try."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def ephemeral_range() -> "tuple[int, int]":
    """Return the first and the last ephemeral port (ip(7), ip_local_port_range)."""
    try:
        first, last = EPHEMERAL.read_text(encoding="ascii").split()
    except OSError:
        return 32768, 60999
    return int(first), int(last)


def can_bind(port: int) -> bool:
    """Return whether ``port`` is free."""
    try:
        with socket.create_server(("", port)):
            return True
    except OSError:
        return False


def main() -> int:
    """Write a free port, or print an error; return the exit code."""
    start = int(sys.argv[2])
    first, last = ephemeral_range()
    ports = range(start, min(start + SPAN, 65536))
    # Ephemeral ports come last, but are used if no other port is free.
    for port in sorted(ports, key=lambda port: first <= port <= last):
        if can_bind(port):
            write_answer(sys.argv[1], str(port))
            return 0
    print(
        f"free_port.py: error[no-free-port]: no port from {start} to {start + SPAN} can be bound: set MASTER_PORT",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
