# shellcheck shell=bash
# A remote shell for each node, where neither Slurm nor mpirun starts processes: ssh, rsh, pbsdsh or
# the like. Environment, folder and command go in by standard input: no value stands in an argument,
# where `ps` would show it.

# ssh_each_node SECONDS COMMAND...: once on each node, for at most so long. NODE_RANK is the number
# of the node. Without a time limit (0), which is the launch, a node that fails ends the others.
ssh_each_node() {
    local how=apart
    [ "$1" != 0 ] || how=together
    for_each_node "$how" ssh_node "$@"
}

# ssh_node NUMBER SECONDS COMMAND...: on the node of that number, for at most so long; 0: without a
# time limit, and without timeout(1), which leaves its command behind where SIGTERM comes while it
# forks. Opened for reading and writing, standard input stays open as long as the remote shell of
# this side lives. When that is gone, however it went, the other side ends its command.
ssh_node() {
    local limit=()
    [ "$2" = 0 ] || limit=(timeout --kill-after=5 "$2")
    export -n SLIPWAY_LAUNCH # of what runs there, and not of this remote shell
    exec "${limit[@]}" "${remote_shell[@]}" "${nodes[$1]}" bash \
        0<> <(remote_script "$1" "${@:3}")
}

# terminate_leftover_ranks: on healthy_nodes. Where a remote shell has died, the other side ends its
# ranks by itself (remote_script), and they hold their GPUs until then. Ranks have 15 s to save.
terminate_leftover_ranks() {
    terminate_ranks "${launch_id:-}" 15
}
