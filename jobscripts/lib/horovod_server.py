"""horovod_server.py ADDRESS NODES RANKS: serve the rendezvous of Horovod's ranks over Gloo, and print the port.

NODES times RANKS ranks; to Horovod a node is a name that its ranks share, here its number. It serves until it is
killed, or until the one that reads its output is gone. Imports Horovod and the standard library.
"""

import select
import sys
import threading

from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer


def main() -> None:
    """Listen on ADDRESS alone, at a port of the system's choice."""
    address, nodes, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    # Each waiting rank asks about a hundred times a second; the system drops what does not fit into socketserver's 5.
    RendezvousHTTPServer.request_queue_size = 1024
    server = RendezvousHTTPServer((address, 0), RendezvousHandler, 0)
    hosts = [HostInfo(str(node), ranks) for node in range(nodes)]
    server.init(get_host_assignments(hosts, nodes * ranks))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    poll = select.poll()
    poll.register(sys.stdout, select.POLLERR)  # the job script has ended, however
    poll.poll()


if __name__ == "__main__":
    main()
