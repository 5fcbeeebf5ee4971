"""head_address.py ANSWER TOKEN FIRST COUNT GIVEN ADDRESS...: choose the address at which other nodes reach this one.

Writes to the file ANSWER the word ``address`` and the first ADDRESS whose interface leads to other nodes, or ``none``
and the reason for each ADDRESS. If GIVEN is not empty, a user has set the address, and it is not checked. If COUNT is
not 0, also writes a port, the first of COUNT ports from FIRST on that can be bound, and serves TOKEN there to
try_head.py, until ANSWER is removed or the reader of its standard output has ended. Writes ``taken`` if no port is
free. Standard library only.
"""

import array
import fcntl
import ipaddress
import select
import socket
import struct
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # PYTHONSAFEPATH omits it
sys.dont_write_bytecode = True  # the run folder's library is compared to others, and may be read-only

from answer import write_answer  # noqa: E402

INTERFACES = Path("/sys/class/net")
ADDRESSES_6 = Path("/proc/net/if_inet6")
SIOCGIFCONF = 0x8912
IFREQ = 40
"""Size of struct ifreq with 64-bit pointers (netdevice(7))."""


def addresses() -> "dict[str, str]":
    """Return a dictionary from each address of this machine to its interface."""
    buffer = array.array("B", bytes(IFREQ * 1024))
    asked = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        size = struct.unpack("iP", fcntl.ioctl(any_socket, SIOCGIFCONF, asked))[0]
    found = {}
    for start in range(0, size, IFREQ):
        row = buffer[start : start + IFREQ].tobytes()
        name = row[:16].partition(b"\0")[0].decode(errors="replace")
        found[socket.inet_ntop(socket.AF_INET, row[20:24])] = name.partition(":")[0]  # eth0:1 is a second address
    if ADDRESSES_6.exists():
        for line in ADDRESSES_6.read_text(encoding="ascii", errors="replace").splitlines():
            digits, *_, name = line.split()
            found[socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))] = name
    return found


def has_uplink(folder: Path) -> bool:
    """Return whether the interface, or a lower one of a bond, VLAN or bridge, is hardware; ``folder`` is in sysfs."""
    return (folder / "device").exists() or any(has_uplink(lower) for lower in folder.glob("lower_*"))


def fault(address: str, interfaces: "dict[str, str]") -> str:
    """Return why other nodes cannot reach ``address``, or "" if there is no such reason."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if ip.is_loopback or ip.is_unspecified:
        return "is a loopback or unspecified address"
    if ip.is_link_local:
        return "is link-local"
    name = interfaces.get(str(ip), "")
    folder = INTERFACES / name
    if name and (folder / "bridge").exists() and not has_uplink(folder):
        return f"belongs to {name}, a bridge without an uplink (virtual machines, containers)"
    return ""


def is_virtual(address: str, interfaces: "dict[str, str]") -> bool:
    """Return whether the interface of ``address`` is not hardware, such as a veth, the only one of a container."""
    name = interfaces.get(address.partition("%")[0], "")
    return bool(name) and not has_uplink(INTERFACES / name)


def choose(found: "list[str]", interfaces: "dict[str, str]") -> "tuple[str, str]":
    """Return an address and "", or "" and the reasons why none is usable; prefer hardware interfaces."""
    faults = {address: fault(address, interfaces) for address in found}
    usable = [address for address in found if not faults[address]]
    if not usable:
        return "", "; ".join(f"{address} {why}" for address, why in faults.items())
    return min(usable, key=lambda address: is_virtual(address, interfaces)), ""


def listen(port: int) -> "socket.socket | None":
    """Return a socket that listens on all interfaces, with IPv6 if available; None if the port is taken."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, backlog=1024, dualstack_ipv6=dual)
    except OSError:
        return None


def answer_with(token: str, connection: socket.socket) -> None:
    """Send ``token``, and let the other side close the connection first, so that the port is free afterwards."""
    with connection:
        connection.settimeout(10)
        try:
            connection.sendall(token.encode())
            connection.recv(1)
        except OSError:
            pass


def serve(server: socket.socket, token: str, answer: Path) -> None:
    """Answer each connection until ``answer`` is removed or the job script has ended."""
    poll = select.poll()
    poll.register(server, select.POLLIN)
    poll.register(sys.stdout, select.POLLERR)  # an event means that the job script has ended
    while answer.exists():
        for descriptor, _ in poll.poll(500):
            if descriptor != server.fileno():
                return
            connection, _ = server.accept()
            threading.Thread(target=answer_with, args=(token, connection), daemon=True).start()


def main() -> int:
    """Choose the address, write the answer and serve; return the exit code."""
    answer, token, first, count, given, *found = sys.argv[1:]
    address, why = (found[0], "") if given else choose(found, addresses())
    words, server = ["address", address], None
    if not address:
        words = ["none", why]
    elif count != "0":
        ports = range(int(first), min(int(first) + int(count), 65536))
        server = next(filter(None, map(listen, ports)), None)
        words = [*words, str(server.getsockname()[1])] if server else ["taken"]
    write_answer(answer, *words)
    print(flush=True)  # wakes the job script, which reads lines
    if server:
        with server:
            serve(server, token, Path(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
