"""horovod_server.py ANSWER ADDRESS NODES RANKS: serve the rendezvous of Horovod's ranks over Gloo.

Writes the port to the file ANSWER, then prints an empty line, which wakes the job script.

There are NODES times RANKS ranks. Horovod identifies a node by a name that its ranks share, here the node's number. The
server runs until it is killed or the reader of its standard output has ended. Imports Horovod and the standard library.
"""

import select
import sys
import threading
from pathlib import Path

from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

sys.path.insert(0, str(Path(__file__).parent))  # PYTHONSAFEPATH omits it
sys.dont_write_bytecode = True  # the run folder's library is compared to others, and may be read-only

from answer import write_answer  # noqa: E402


def main() -> None:
    """Serve on ADDRESS only, at a port that the system chooses."""
    path, address, nodes, ranks = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
    # Each waiting rank connects about 100 times a second. The system would drop connections beyond socketserver's 5.
    RendezvousHTTPServer.request_queue_size = 1024
    server = RendezvousHTTPServer((address, 0), RendezvousHandler, 0)
    hosts = [HostInfo(str(node), ranks) for node in range(nodes)]
    server.init(get_host_assignments(hosts, nodes * ranks))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    write_answer(path, str(server.server_port))
    print(flush=True)
    poll = select.poll()
    poll.register(sys.stdout, select.POLLERR)  # an event means that the job script has ended
    poll.poll()


if __name__ == "__main__":
    main()
