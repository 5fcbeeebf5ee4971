# shellcheck shell=bash
# A remote shell for each node as the launcher, if neither Slurm nor mpirun starts processes: ssh,
# rsh, pbsdsh or similar. The environment, folder and command are passed by standard input, because
# `ps` would show arguments to other users.

# ssh_each_node SECONDS COMMAND...: run COMMAND once on each node, with this time limit. NODE_RANK
# contains the number of the node. 0 is the launch: it has no time limit, and a node that fails ends
# the others. (Each launcher file defines LAUNCHER_each_node.)
ssh_each_node() {
    local how=apart
    [ "$1" != 0 ] || how=together
    loop_over_nodes "$how" ssh_node "$@"
}

# ssh_node NUMBER SECONDS COMMAND...: run COMMAND on the node of this number. With 0 there is no
# time limit and no timeout(1), which would not end its command if SIGTERM arrived while it forks.
# Standard input is open for reading and writing, so it stays open as long as the local remote-shell
# process lives. When that process ends for any reason, the other side ends its command. Replaces
# the shell in which it is called. (Each launcher file defines LAUNCHER_node.)
ssh_node() {
    local limit=()
    [ "$2" = 0 ] || limit=(timeout --kill-after=5 "$2")
    export -n SLIPWAY_LAUNCH # marks the processes on the node, not this remote shell
    exec "${limit[@]}" "${remote_shell[@]}" "${nodes[$1]}" bash \
        0<> <(remote_script "$1" "${@:3}")
}

# terminate_leftover_ranks: wait for, then kill, the ranks on healthy_nodes. After a remote shell
# has died, the other side ends its ranks itself (remote_script), and they hold their GPUs until
# then. The ranks have 15 s to save. (Overrides the default in leftovers.bash.)
terminate_leftover_ranks() {
    terminate_ranks "${launch_id:-}" 15
}
