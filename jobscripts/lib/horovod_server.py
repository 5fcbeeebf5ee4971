"""horovod_server.py ANSWER ADDRESS NODES RANKS: serve the rendezvous of Horovod's ranks over Gloo.

It leaves the port in the file ANSWER, and prints an empty line for whoever waits for that.

NODES times RANKS ranks; to Horovod a node is a name that its ranks share, here its number. It serves until it is
killed, or until the one that reads its output is gone. Imports Horovod and the standard library.
"""

import select
import sys
import threading
from pathlib import Path

from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

sys.path.insert(0, str(Path(__file__).parent))  # which PYTHONSAFEPATH leaves out
sys.dont_write_bytecode = True  # a run folder's library is compared, and may be read-only

from answer import leave_answer  # noqa: E402


def main() -> None:
    """Listen on ADDRESS alone, at a port of the system's choice."""
    path, address, nodes, ranks = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
    # Each waiting rank asks about a hundred times a second; the system drops what does not fit into socketserver's 5.
    RendezvousHTTPServer.request_queue_size = 1024
    server = RendezvousHTTPServer((address, 0), RendezvousHandler, 0)
    hosts = [HostInfo(str(node), ranks) for node in range(nodes)]
    server.init(get_host_assignments(hosts, nodes * ranks))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    leave_answer(path, str(server.server_port))
    print(flush=True)
    poll = select.poll()
    poll.register(sys.stdout, select.POLLERR)  # the job script has ended, however
    poll.poll()


if __name__ == "__main__":
    main()
