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

# ssh_node NUMBER SECONDS COMMAND...: on the node of that number. Opened for reading and writing,
# standard input stays open as long as the remote shell of this side lives. When that is gone,
# however it went, the other side ends its command.
ssh_node() {
    exec timeout --kill-after=5 "$2" "${remote_shell[@]}" "${nodes[$1]}" bash \
        0<> <(remote_script "$1" "${@:3}")
}

# remote_script NUMBER COMMAND...: what Bash on the node reads. It runs the command until that ends,
# or until its standard input does. Bash that finds SSH_CLIENT reads ~/.bashrc even for a command,
# and who knows what that does to PATH.
remote_script() {
    local number=$1
    shift
    export -p
    cat <<END
{
    cd ${PWD@Q}
    unset -v SSH_CLIENT SSH2_CLIENT
    export NODE_RANK=$number PET_NODE_RANK=$number
    exec 3<&0
    ${*@Q} 3<&- </dev/null &
    command=\$!
    {
        read -r
        kill 0
    } <&3 >/dev/null 2>&1 &
    wait \$command
    code=\$?
    kill \$!
    exit \$code
}
END
}
