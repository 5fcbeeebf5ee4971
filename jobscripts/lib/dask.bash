# shellcheck shell=bash
# Dask as the scheduler: it requests each node from the site's scheduler by a separate job. This
# script is a client on another machine. Its process `trainer.launch.dask nodes` requests the nodes,
# holds them, and releases them when that process is ended or when this script has ended for any
# reason. If that process is killed, this script releases the nodes.

source "${BASH_SOURCE[0]%/*}/job.bash"

readonly SCHEDULER_COMMANDS=()

# check_dask: fail if the environment's Python or Dask is missing. Sets client, the command prefix
# of trainer.launch.dask, which runs in the environment even if the ranks run in the image.
check_dask() {
    local python
    python=$(realpath --canonicalize-missing -- "$SLIPWAY_VENV")/bin/python
    client=(env --unset=PYTHONPATH --unset=PYTHONHOME --unset=PYTHONSTARTUP PYTHONSAFEPATH=1
        "$python" -m trainer.launch.dask)
    [ -x "$python" ] ||
        die no-environment \
            "SLIPWAY_VENV: $SLIPWAY_VENV/bin/python is missing; the client needs it, also with" \
            "USE_CONTAINER=1"
    run_limited 120 "${client[@]}" check || {
        [ "$step_failure" = ': see above' ] ||
            die no-environment "$python cannot import Dask$step_failure"
        die no-environment \
            "no Dask in $SLIPWAY_VENV: $python -m pip install dask-jobqueue cryptography"
    }
}

# find_allocation: set what each node will have. Sets cpus (of one node), ranks_per_node,
# gpus_per_node, scratch_id and first_port; and nnodes and world_size for the case that all
# requested nodes arrive. (Each scheduler file defines it.)
find_allocation() {
    local minimum=${SLIPWAY_MIN_NODES:-$SLIPWAY_NODES}
    check_dask
    ((minimum <= SLIPWAY_NODES)) ||
        die conflicting-settings \
            "SLIPWAY_MIN_NODES is $minimum, but SLIPWAY_NODES is only $SLIPWAY_NODES"
    nnodes=$SLIPWAY_NODES
    cpus=$directives_cpus
    gpus_per_node=$directives_gpus
    scratch_id=$job_id
    first_port=$((20000 + $$ % 10000))
    plan_ranks
}

# request_nodes: request SLIPWAY_NODES nodes and wait up to SLIPWAY_WAIT_SECONDS for them. Sets
# nodes (their addresses), nnodes, head_node, world_size, on_head_node, held_since, began_at,
# nodes_holder, and time_is_up, the value of SECONDS when the first node's job ends. Fails if fewer
# than SLIPWAY_MIN_NODES have arrived.
request_nodes() {
    local address name left code=0
    request=$log_dir/dask
    mkdir --mode=700 -- "$request" || die cannot-write "cannot write $request: is the disk full?"
    node_request >"$request/request.json" ||
        die cannot-write "cannot write $request: is the disk full?"
    # setsid: a signal to this script's process group must not end this process.
    setsid -- "${client[@]}" nodes "$request" --workers "$SLIPWAY_NODES" \
        --min-workers "${SLIPWAY_MIN_NODES:-$SLIPWAY_NODES}" --wait "$SLIPWAY_WAIT_SECONDS" \
        --save "$save_seconds" </dev/null &
    nodes_holder=$!
    until [ -f "$request/nodes" ]; do
        if ! kill -0 "$nodes_holder" 2>/dev/null; then
            wait "$nodes_holder" || code=$?
            exit "$code"
        fi
        sleep 0.2
    done
    nodes=()
    time_is_up=''
    while read -r address name left; do
        nodes+=("$address")
        log "node ${#nodes[@]} of at most $SLIPWAY_NODES: $name, $address, for $left s"
        [ -n "$time_is_up" ] && ((time_is_up <= SECONDS + left)) || time_is_up=$((SECONDS + left))
    done <"$request/nodes"
    held_since=$SECONDS began_at=$(epoch_seconds)
    nnodes=${#nodes[@]}
    head_node=${nodes[0]}
    world_size=$((nnodes * ranks_per_node))
    on_head_node=("${client[@]}" on-head-node "$request")
}

# release_nodes: end the process that holds the nodes, and cancel the jobs that it may have left.
release_nodes() {
    local deadline=$((SECONDS + 30))
    [ -n "${nodes_holder:-}" ] || return 0
    kill -TERM "$nodes_holder" 2>/dev/null || :
    while kill -0 "$nodes_holder" 2>/dev/null && ((SECONDS < deadline)); do
        sleep 0.2
    done
    kill -KILL "$nodes_holder" 2>/dev/null || :
    nodes_holder=''
    timeout --kill-after=5 120 "${client[@]}" cancel "$request" ||
        warn jobs-left "some of the nodes' jobs may still run: see above and the scheduler's queue"
}

# dask_each_node SECONDS COMMAND...: run COMMAND once on each node by a Dask task, with this time
# limit. NODE_RANK contains the number of the node. 0 is the launch: it has no time limit, and a
# node that fails ends the others. (Each launcher file defines LAUNCHER_each_node.)
dask_each_node() {
    local name limit=(timeout --kill-after=10 "$1") together=()
    [ "$1" != 0 ] || limit=() together=(--together)
    trap '' INT HUP # the terminal signals all its processes: this script handles the signal
    # If this script runs inside a job, that job's variables must not reach the node.
    while IFS= read -r name; do
        [[ $name == *_CONF* ]] || unset -v "$name"
    done < <(compgen -e "$job_variables" || :)
    export -n SLIPWAY_LAUNCH # marks the processes on the nodes, not the client
    # shellcheck disable=SC2016 # the Dask task sets NODE_RANK
    exec "${limit[@]}" "${client[@]}" each-node "$request" "${together[@]}" \
        < <(remote_script '$NODE_RANK' "${@:2}")
}

# job_has_ended JOB: return 0 if the process whose number is the end of the job's name has ended or
# the number now belongs to another process, 1 if it runs, 2 if it is on another machine. (Each
# scheduler file defines it.)
job_has_ended() {
    local pid=${1##*-} host=${1%-*}
    [ "${host#*-*-}" = "${HOSTNAME%%.*}" ] || return 2
    [ "$pid" = $$ ] ||
        ! grep --quiet --null-data --extended-regexp "(^|/)(job\.sh|$script_name)$" \
            "/proc/$pid/cmdline" 2>/dev/null
}

# handle_stop_signal: request a stop by the file STOP, because Ctrl-C and SIGTERM do not reach the
# nodes. Also send the launcher SIGTERM for a user script, which may not read STOP. (Each scheduler
# file defines it.)
handle_stop_signal() {
    request_stop user
    [ -z "$SLIPWAY_SCRIPT" ] || signal_launch
}

# watch_time_limit: start a process that sends this script SIGUSR1 when save_seconds remain of the
# first node's time. It ends with the script. Sets watcher, the descriptor by which it detects that.
# (Each scheduler file defines it.)
watch_time_limit() {
    exec {watcher}> >(
        trap '' TERM USR1 INT HUP
        # `read` returns at end of file when the script has ended.
        left=$((time_is_up - save_seconds - SECONDS))
        ((left > 0)) || left=1
        read -r -t "$left" || [ $? -gt 128 ] || exit 0
        kill -USR1 $$
    )
}

# resubmit METHOD: release the nodes and replace this script by the next attempt, which uses the
# saved settings and the same process number as in job_id. METHOD must be restart. Returns 1 for
# another METHOD. (Each scheduler file defines it.)
resubmit() {
    [ "$1" = restart ] || return 1
    release_nodes
    trap - TERM USR1 INT HUP
    restore_environment
    export SLIPWAY_CLIENT=$job_id
    exec bash "$RUN_DIR/job.sh"
}

# continue_command: print the shell command that continues the run. (Each scheduler file defines
# it.)
continue_command() {
    printf 'bash %q\n' "$RUN_DIR/job.sh"
}
