server='import sys; from horovod.runner.common.util import hosts; from horovod.runner.http import http_server as http
address, nodes, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) # a node is called by its number
server = http.RendezvousHTTPServer((address, 0), http.RendezvousHandler, 0)
server.init(hosts.get_host_assignments([hosts.HostInfo(str(node), ranks) for node in range(nodes)], nodes * ranks))
print(server.server_port, flush=True), server.serve_forever()'
exec {said}< <(exec "${container[@]}" python -c "$server" "$MASTER_ADDR" "$nnodes" "$RANKS_PER_NODE" 2>"$errors") && server=$!
if read -r HOROVOD_GLOO_RENDEZVOUS_PORT <&"$said"; then launch; else cat -- "$errors" >&2; fi; kill "$server" 2>/dev/null || :
