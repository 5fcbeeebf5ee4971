# shellcheck shell=bash
# Nodes that Dask gets from the site's scheduler, each by a job of its own. This script is a client
# on another machine: a process of it, `trainer.launch.dask nodes`, asks for the nodes, holds them,
# and gives them back when it is ended, or when this script is gone, however it went. If that
# process is killed, this script does it.

source "${BASH_SOURCE[0]%/*}/job.bash"

readonly SCHEDULER_COMMANDS=()

# check_dask: fails if Dask is not where it is looked for. Sets client, the words of
# trainer.launch.dask, which runs in the environment also where the ranks are in the image.
check_dask() {
    local python
    python=$(realpath --canonicalize-missing -- "$SLIPWAY_VENV")/bin/python
    client=(env --unset=PYTHONPATH --unset=PYTHONHOME --unset=PYTHONSTARTUP PYTHONSAFEPATH=1
        "$python" -m trainer.launch.dask)
    [ -x "$python" ] ||
        die no-environment \
            "SLIPWAY_VENV: $SLIPWAY_VENV/bin/python is missing, and the client runs by it, also" \
            "with USE_CONTAINER=1"
    run_limited 120 "${client[@]}" check || {
        [ "$step_failure" = ': see above' ] ||
            die no-environment "Dask was not imported by $python$step_failure"
        die no-environment \
            "no Dask in $SLIPWAY_VENV: $python -m pip install dask-jobqueue cryptography"
    }
}

# find_allocation: what a node will have. Sets cpus (of one node), ranks_per_node, gpus_per_node and
# first_port; and nnodes and world_size, as far as all nodes come.
find_allocation() {
    local minimum=${SLIPWAY_MIN_NODES:-$SLIPWAY_NODES}
    check_dask
    ((minimum <= SLIPWAY_NODES)) ||
        die conflicting-settings \
            "SLIPWAY_MIN_NODES is $minimum, and SLIPWAY_NODES only $SLIPWAY_NODES"
    nnodes=$SLIPWAY_NODES
    cpus=$directives_cpus
    gpus_per_node=$directives_gpus
    scratch_id=$job_id
    first_port=$((20000 + $$ % 10000))
    plan_ranks
}

# request_nodes: for SLIPWAY_NODES, and wait for them for SLIPWAY_WAIT_SECONDS. Sets nodes (their
# addresses), nnodes, head_node, world_size, on_head_node, held_since, and time_is_up, in SECONDS of
# this shell, when the first of them ends. Fails if fewer than SLIPWAY_MIN_NODES have come.
request_nodes() {
    local address name left code=0
    request=$log_dir/dask
    mkdir --mode=700 -- "$request" || die cannot-write "cannot write $request: is the disk full?"
    node_request >"$request/request.json" ||
        die cannot-write "cannot write $request: is the disk full?"
    # In a session of its own: who ends this script with its whole process group does not end it.
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

# release_nodes: end the process that holds the nodes, and whatever jobs it may have left.
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
        warn jobs-left "some of the nodes' jobs may be left: see above, and the scheduler's queue"
}

# dask_each_node SECONDS COMMAND...: once on each node, for at most so long, by a task of Dask.
# NODE_RANK is the number of the node. Without a time limit (0), which is the launch, a node that
# fails ends the others.
dask_each_node() {
    local name limit=(timeout --kill-after=10 "$1") together=()
    [ "$1" != 0 ] || limit=() together=(--together)
    trap '' INT HUP # of the terminal, for all its processes: what this script does then is enough
    # The job that this script may run in is not the one that the node has.
    while IFS= read -r name; do
        [[ $name == *_CONF* ]] || unset -v "$name"
    done < <(compgen -e "$job_variables" || :)
    export -n SLIPWAY_LAUNCH # of what runs there, and not of the client
    # shellcheck disable=SC2016 # the task sets it
    exec "${limit[@]}" "${client[@]}" each-node "$request" "${together[@]}" \
        < <(remote_script '$NODE_RANK' "${@:2}")
}

# job_has_ended JOB: whether the process that its name ends with is gone, or is another one by now;
# 2: it is on another machine.
job_has_ended() {
    local pid=${1##*-} host=${1%-*}
    [ "${host#*-*-}" = "${HOSTNAME%%.*}" ] || return 2
    [ "$pid" = $$ ] ||
        ! grep --quiet --null-data --extended-regexp "(^|/)(job\.sh|$script_name)$" \
            "/proc/$pid/cmdline" 2>/dev/null
}

# Ctrl-C and SIGTERM reach no node. Ranks learn it from STOP; a script that does not look for that
# is sent SIGTERM.
handle_stop_signal() {
    request_stop user
    [ -z "$SLIPWAY_SCRIPT" ] || signal_launch
}

# watch_time_limit: send this script SIGUSR1 when no more than save_seconds are left of the first
# node's time. It ends with the script. Sets watcher, the descriptor by which it knows.
watch_time_limit() {
    exec {watcher}> >(
        trap '' TERM USR1 INT HUP
        # read: end of file is the end of the script
        left=$((time_is_up - save_seconds - SECONDS))
        ((left > 0)) || left=1
        read -r -t "$left" || [ $? -gt 128 ] || exit 0
        kill -USR1 $$
    )
}

# resubmit restart: give the nodes back, and run the next attempt in place of this one, by the
# settings that are kept, with the process number that job_id ends with.
resubmit() {
    [ "$1" = restart ] || return 1
    release_nodes
    trap - TERM USR1 INT HUP
    restore_environment
    export SLIPWAY_CLIENT=$job_id
    exec bash "$RUN_DIR/job.sh"
}

# The command that continues the run, as one types it.
continue_command() {
    printf 'bash %q\n' "$RUN_DIR/job.sh"
}
