# shellcheck shell=bash
# Steps on this node alone, without a launcher. For launchers that start each node by a separate
# command: a loop over the nodes, and the script that Bash on a node reads.

readonly GUARD_SECONDS=30 # from SIGTERM to SIGKILL on a node, like torchrun and Slurm

# local_each_node SECONDS COMMAND...: run COMMAND on this node, with this time limit. Replaces the
# shell in which it is called. (Each launcher file defines LAUNCHER_each_node.)
local_each_node() {
    exec timeout --kill-after=5 "$@"
}

# local_node NUMBER SECONDS COMMAND...: do the same. (Each launcher file defines LAUNCHER_node.)
local_node() {
    exec timeout --kill-after=5 "${@:2}"
}

# loop_over_nodes HOW FUNCTION ARGUMENT...: run `FUNCTION NUMBER ARGUMENT...` for each node, all at
# the same time. NUMBER begins at 0. Each call runs in a separate process, which FUNCTION replaces
# by exec. Forwards SIGTERM to all of them. HOW is `together` if a node that fails ends the others,
# whose ranks would wait for its ranks, or `apart`. Returns the exit code of the first that failed.
loop_over_nodes() {
    local number stopped='' started=()
    # $! is passed too, as it may not be in `started` yet.
    trap 'stopped=1; terminate_node_processes "${started[@]}" "${!:-}"' TERM
    for number in "${!nodes[@]}"; do
        [ -z "$stopped" ] || break
        "$2" "$number" "${@:3}" &
        started+=($!)
    done
    wait_for_nodes "$1" "${started[@]}"
}

# wait_for_nodes HOW PID...: wait for all processes. Returns the exit code of the first that failed.
# Polls each process, because plain `wait` waits for one and `wait -n` does not report which one
# ended (before Bash 5.1). Sends SIGTERM again after a second: a process that has just been forked
# still has the trap of this shell and loses the first signal.
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
        # Sleep briefly without starting a process.
        [ ${#left[@]} -eq 0 ] || read -r -t 0.2 <&"$nothing" || :
    done
    exec {nothing}>&-
    return "$code"
}

# terminate_node_processes PID...: send SIGTERM to the processes that still run.
terminate_node_processes() {
    kill "$@" 2>/dev/null || :
}

# remote_script NUMBER COMMAND...: print the script that Bash on the node reads. It runs COMMAND
# until COMMAND ends or its standard input does, which happens when the local side ends for any
# reason. The scheduler may not know of these processes. So a guard in a separate process group then
# sends SIGTERM to the command's process group, and after GUARD_SECONDS sends SIGKILL to that group
# and to all processes with its SLIPWAY_LAUNCH. After COMMAND has ended, its remaining processes are
# killed in the same way; those of another node of the job, as two Dask workers can share a machine,
# are not. SSH_CLIENT is unset because Bash would read ~/.bashrc, which may change PATH.
remote_script() {
    local number=$1 launch=${SLIPWAY_LAUNCH:-step.$job_id.$run_mark.$BASHPID.$RANDOM} end
    shift
    launch=${launch@Q}.node$number
    end="sh ${lib@Q}/end_ranks.sh $launch $GUARD_SECONDS"
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
        while kill -0 \$\$; do # until this shell has ended or was killed
            read -r -t 1
            [ \$? -gt 128 ] || break
        done
        kill -TERM -- -\$group
        exec $end \$group
    } <&3 >/dev/null 2>&1 &
    guard=\$!
    set +m
    disown # so that Bash does not report its end
    wait \$command
    code=\$?
    kill -KILL \$guard
    $end 3<&- </dev/null >/dev/null 2>&1
    exit \$code
}
END
}

# unset_local_variables: unexport the variables that are valid on this node only: its name, and
# TMPDIR unless it is the scratch folder. Call it in a subshell whose variables go to other nodes.
unset_local_variables() {
    export -n HOSTNAME
    [ "${TMPDIR:-}" = "${scratch:-}" ] || export -n TMPDIR
}
