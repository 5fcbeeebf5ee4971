"""try_head.py COMMAND...: test the connection to the first node that the ranks will need, then run the command.

Reads MASTER_ADDR, and from TRAINER_PROBE_ADDRESS port and token of head_address.py, which runs on the first node.
Exits with 78 and a one-line error if the node cannot be reached or another program answers. Standard library only.
"""

import os
import socket
import sys

EXIT_CONFIG = 78
LIMIT = 10.0
"""Time limit in seconds to connect, and to get an answer."""


def fault(address: str, port: str, token: str) -> str:
    """Return why the first node cannot be reached, or "" if it can."""
    said = b""
    try:
        with socket.create_connection((address, int(port)), timeout=LIMIT) as connection:
            while len(said) < len(token):
                part = connection.recv(len(token) - len(said))
                if not part:
                    break
                said += part
    except OSError as error:
        return error.strerror or str(error)
    return "" if said == token.encode() else "another program answers there"


def main() -> None:
    """Test the connection, then replace this process by the command."""
    address, (port, token) = os.environ["MASTER_ADDR"], os.environ["TRAINER_PROBE_ADDRESS"].split()
    why = fault(address, port, token)
    if why:
        print(
            f"preflight: {socket.gethostname()}: error[no-network]: cannot reach the first node at {address}:{port}: "
            f"{why}; set MASTER_ADDR to its address in the network of the nodes",
            file=sys.stderr,
        )
        sys.exit(EXIT_CONFIG)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 -- the words are the job script's


if __name__ == "__main__":
    main()
