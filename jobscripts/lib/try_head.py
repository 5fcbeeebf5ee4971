"""try_head.py COMMAND...: connect to the head node as the ranks are going to, and run the command.

Reads MASTER_ADDR, and in TRAINER_MEETING the port and the token of head_address.py, which runs there. Ends with 78 and
a line if it is not reached, or another program answers. Standard library only.
"""

import os
import socket
import sys

EXIT_CONFIG = 78
LIMIT = 10.0
"""Seconds to connect, and to be answered."""


def fault(address: str, port: str, token: str) -> str:
    """Return why the head node is not reached, "" if it is."""
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
    """Try it."""
    address, (port, token) = os.environ["MASTER_ADDR"], os.environ["TRAINER_MEETING"].split()
    why = fault(address, port, token)
    if why:
        print(
            f"preflight: {socket.gethostname()}: error[no-network]: no way to the head node at {address}, port {port}: "
            f"{why}; set MASTER_ADDR to its address in the network of the nodes",
            file=sys.stderr,
        )
        sys.exit(EXIT_CONFIG)
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 -- the words are the job script's


if __name__ == "__main__":
    main()
