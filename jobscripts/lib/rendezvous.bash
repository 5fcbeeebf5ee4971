# shellcheck shell=bash
# The rendezvous of the ranks: an address of the first node that the other nodes can reach, and a
# port or Horovod's server on it.

# choose_rendezvous: choose the address at which the ranks meet. Exports MASTER_ADDR; a value from
# the environment is kept. The preflight connects to it from each node. Sets port_is_given,
# given_address, rendezvous and first_node_is_probed. Fails if MASTER_PORT is invalid.
choose_rendezvous() {
    port_is_given=${MASTER_PORT:+1}
    given_address=${MASTER_ADDR:-}
    rendezvous=1
    if [ -n "$port_is_given" ]; then
        [[ $MASTER_PORT =~ ^[1-9][0-9]{3,4}$ ]] && ((MASTER_PORT > 1023 && MASTER_PORT < 65536)) ||
            die bad-value "MASTER_PORT is ${MASTER_PORT@Q}: it must be a port from 1024 to 65535"
    fi
    [ -z "$given_address" ] ||
        warn kept-variable "MASTER_ADDR=$given_address was set outside and is kept"
    first_node_is_probed=1
    find_master_address
}

# find_master_address: find an address of the first node that the other nodes can reach. Exports
# MASTER_ADDR; sets master_address_is_found. If first_node_is_probed is set, also starts a server on
# the first node for the preflight. Ends the job without an address; in a restart, returns 1
# (fail_without_master).
find_master_address() {
    local addresses=("$given_address")
    [ -n "$given_address" ] ||
        mapfile -t addresses < <(getent ahosts "$head_node" | awk '!seen[$1]++ { print $1 }')
    MASTER_ADDR=${addresses[0]:-}
    [ -n "$MASTER_ADDR" ] || \
        fail_without_master "cannot resolve the name $head_node: set MASTER_ADDR" || return 1
    [ "$nnodes" = 1 ] || choose_address "${addresses[@]}" || return 1
    export_to_ranks MASTER_ADDR="$MASTER_ADDR"
    master_address_is_found=1
}

# fail_without_master MESSAGE: end the job; in a restart, log the error and return 1, because
# another node may have died.
fail_without_master() {
    [ "${restarts:-0}" != 0 ] || die no-master-address "$@"
    error no-master-address "$@"
    return 1
}

# choose_address ADDRESS...: choose one of the first node's addresses, which are in the order of
# name resolution. An address from the environment is kept. Sets MASTER_ADDR; exports
# TRAINER_PROBE_ADDRESS, for try_head.py. Fails if all addresses are loopback, link-local or of a
# bridge without an uplink.
choose_address() {
    local address token='' run=run_for_answer first=${MASTER_PORT:-$first_port} count=0 found=()
    for address in "$@"; do
        [[ $address =~ ^(localhost|127\..*|::1)$ ]] || found+=("$address")
    done
    [ ${#found[@]} != 0 ] ||
        fail_without_master "the name of the first node, $head_node, resolves to $1, which other" \
            "nodes cannot reach: set" \
            "MASTER_ADDR, or have the name resolution fixed" || return 1
    if [ -n "${first_node_is_probed:-}" ]; then
        run=start_server count=2000 token=$(random_name)
        [ -z "$port_is_given" ] || count=1
    elif [ -n "$given_address" ]; then
        return 0
    fi
    "$run" 60 head_address.py "$token" "$first" "$count" "$given_address" "${found[@]}" ||
        fail_without_master "cannot read the network of the first node $head_node$step_failure" ||
            return 1
    case ${answer[0]:-} in
        address) ;;
        taken)
            die no-free-port \
                "no port from $first to $((first + count - 1)) is free on $head_node: set" \
                "MASTER_PORT to a free one"
            ;;
        *)
            fail_without_master \
                "other nodes cannot reach $head_node: ${answer[1]:-${answer[*]@Q}}: set MASTER_ADDR"
            return 1
            ;;
    esac
    [[ " ${found[*]} " == *" ${answer[1]:-} "* ]] ||
        fail_without_master "$head_node has no address ${answer[*]@Q}: set MASTER_ADDR" || return 1
    MASTER_ADDR=${answer[1]}
    [ "$count" = 0 ] || export_probe_address "$token" "${answer[2]:-}"
}

# export_probe_address TOKEN PORT: export the port at which the first node listens for the
# preflight. Fails if PORT is invalid.
export_probe_address() {
    answer=("$2")
    answer_is_port ||
        die no-master-address \
            "the first node $head_node does not listen$step_failure: set MASTER_ADDR"
    export_to_ranks TRAINER_PROBE_ADDRESS="$2 $1"
}

# open_rendezvous: choose the rendezvous port directly before a launch, so that no other process
# takes it in between. Exports MASTER_PORT, keeping a value from the environment, or the address of
# Horovod's rendezvous server; in a restart also MASTER_ADDR. Returns 1, and logs why, if that
# fails.
open_rendezvous() {
    [ "${rendezvous:-0}" = 1 ] || return 0
    [ -n "$master_address_is_found" ] || find_master_address || return 1
    case $BACKEND in
        ddp) choose_port ;;
        horovod) start_horovod_server ;;
    esac
}

# log_ranks: log the number of ranks, their nodes, and the rendezvous address unless MPI connects
# the ranks.
log_ranks() {
    local line="$world_size rank(s), $ranks_per_node on each of $nnodes node(s)"
    line+=" ($(join_by ', ' "${nodes[@]:0:8}")${nodes[8]:+, ...})"
    if [ "${rendezvous:-0}" = 1 ]; then
        case $BACKEND in
            ddp) line+=", rendezvous at $MASTER_ADDR:$MASTER_PORT" ;;
            horovod) line+=", rendezvous at $MASTER_ADDR:$HOROVOD_GLOO_RENDEZVOUS_PORT" ;;
        esac
    fi
    log "$line"
}

# choose_port: find the first port from first_port on that can be bound on the first node. Exports
# MASTER_PORT, unless it is given. Fails if no port is free.
choose_port() {
    [ -z "$port_is_given" ] || return 0
    run_for_answer 60 free_port.py "$first_port" && answer_is_port || {
        error no-free-port "found no free port on $head_node$step_failure"
        return 1
    }
    export_to_ranks MASTER_PORT="${answer[0]}"
}

# answer_is_port: return 0 if the answer is a port number and nothing else. Sets step_failure if
# not.
answer_is_port() {
    [[ ${answer[*]} =~ ^[1-9][0-9]{0,4}$ ]] && ((answer[0] < 65536)) ||
        { step_failure=": ${answer[*]@Q} is not a port" && return 1; }
}

# start_horovod_server: start Horovod's own rendezvous server on the first node, until the script
# ends. It does not need MPI. Exports the variables by which Horovod's ranks find it. Fails if it
# does not start.
start_horovod_server() {
    start_server 120 horovod_server.py "$MASTER_ADDR" "$nnodes" "$ranks_per_node" &&
        answer_is_port || {
        error no-rendezvous "Horovod's rendezvous server did not start$step_failure"
        return 1
    }
    export_to_ranks \
        HOROVOD_CONTROLLER=gloo \
        HOROVOD_CPU_OPERATIONS=gloo \
        HOROVOD_GLOO_RENDEZVOUS_ADDR="$MASTER_ADDR" \
        HOROVOD_GLOO_RENDEZVOUS_PORT="${answer[0]}" \
        HOROVOD_GLOO_IFACE="${GLOO_SOCKET_IFNAME:-}" \
        HOROVOD_GLOO_TIMEOUT_SECONDS="${HOROVOD_GLOO_TIMEOUT_SECONDS:-600}" \
        HOROVOD_SIZE="$world_size" \
        HOROVOD_LOCAL_SIZE="$ranks_per_node" \
        HOROVOD_CROSS_SIZE="$nnodes"
}
