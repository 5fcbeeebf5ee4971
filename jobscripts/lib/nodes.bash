# shellcheck shell=bash
# Steps without a launcher, on this node alone; and for launchers that start each node by a command
# of its own a loop over the nodes, and what a shell on a node reads.

readonly GUARD_SECONDS=30 # between SIGTERM and SIGKILL on a node, as torchrun and Slurm wait

# local_each_node SECONDS COMMAND...: here, for at most so long.
local_each_node() {
    exec timeout --kill-after=5 "$@"
}

# local_node NUMBER SECONDS COMMAND...: the same.
local_node() {
    exec timeout --kill-after=5 "${@:2}"
}

# for_each_node HOW FUNCTION ARGUMENT...: run `FUNCTION NUMBER ARGUMENT...` for each of the nodes,
# whose numbers begin at 0, all at the same time, each in a process of its own that FUNCTION
# replaces by exec. SIGTERM goes on to all. HOW is together, where one that fails is to end the
# others, whose ranks would wait for its ranks, or apart. Returns the exit code of the first that
# failed.
for_each_node() {
    local number stopped='' started=()
    # $! may not be in `started` yet.
    trap 'stopped=1; terminate_node_processes "${started[@]}" "${!:-}"' TERM
    for number in "${!nodes[@]}"; do
        [ -z "$stopped" ] || break
        "$2" "$number" "${@:3}" &
        started+=($!)
    done
    wait_for_nodes "$1" "${started[@]}"
}

# wait_for_nodes HOW PID...: wait for all. Returns the exit code of the first that failed.
# It looks at each, as plain `wait` is for one, and `wait -n` does not say which (before Bash 5.1).
# SIGTERM is sent once more after a second: a process that has just been forked loses the first, as
# it still has the trap of this shell.
wait_for_nodes() {
    local pid ended code=0 left=("${@:2}") alive nothing once_more=''
    exec {nothing}<> <(:)
    while [ ${#left[@]} -gt 0 ]; do
        alive=()
        for pid in "${left[@]}"; do
            if kill -0 "$pid" 2>/dev/null; then
                alive+=("$pid")
                continue
            fi
            ended=0
            wait "$pid" || ended=$?
            [ "$ended" != 0 ] && [ "$code" = 0 ] || continue
            code=$ended
            [ "$1" = apart ] || terminate_node_processes "${left[@]}"
            once_more=$((SECONDS + 2))
        done
        left=("${alive[@]}")
        if [ "$1" = together ] && ((SECONDS >= ${once_more:-SECONDS + 1})); then
            terminate_node_processes "${left[@]}"
            once_more=''
        fi
        # A short sleep that starts no process.
        [ ${#left[@]} -eq 0 ] || read -r -t 0.2 <&"$nothing" || :
    done
    exec {nothing}>&-
    return "$code"
}

# terminate_node_processes PID...: send SIGTERM to those that still run.
terminate_node_processes() {
    kill "$@" 2>/dev/null || :
}

# remote_script NUMBER COMMAND...: what Bash on the node reads. It runs the command until that ends,
# or until its standard input does: when this side is gone, however it went. No scheduler may know
# what runs there, so a guard, in a process group of its own, then sends SIGTERM to the command's
# process group, and after GUARD_SECONDS SIGKILL to that and to whatever else has its
# SLIPWAY_LAUNCH. What is left of a command that has ended is killed likewise. Bash that finds
# SSH_CLIENT reads ~/.bashrc even for a command, and who knows what that does to PATH.
remote_script() {
    local number=$1 launch=${SLIPWAY_LAUNCH:-step.$job_id.$run_mark.$BASHPID.$RANDOM} end
    shift
    end="sh ${lib@Q}/end_ranks.sh ${launch@Q} $GUARD_SECONDS"
    (unset_local_variables && export -p)
    cat <<END
{
    cd ${PWD@Q}
    unset -v SSH_CLIENT SSH2_CLIENT
    export NODE_RANK=$number PET_NODE_RANK=$number SLIPWAY_LAUNCH=$launch
    exec 3<&0
    ${*@Q} 3<&- </dev/null &
    command=\$!
    unset -v SLIPWAY_LAUNCH
    read -r _ _ _ _ group _ </proc/\$\$/stat
    set -m
    {
        trap '' TERM HUP INT
        while kill -0 \$\$; do # the shell itself may be killed
            read -r -t 1
            [ \$? -gt 128 ] || break
        done
        kill -TERM -- -\$group
        exec $end \$group
    } <&3 >/dev/null 2>&1 &
    guard=\$!
    set +m
    disown # so nobody reports its end
    wait \$command
    code=\$?
    kill -KILL \$guard
    $end 3<&- </dev/null >/dev/null 2>&1
    exit \$code
}
END
}

# unset_local_variables: export no more what is true of this node alone: its name, and a folder for
# temporary files that is not the job's own. For a subshell whose variables go to other nodes.
unset_local_variables() {
    export -n HOSTNAME
    [ "${TMPDIR:-}" = "${scratch:-}" ] || export -n TMPDIR
}
