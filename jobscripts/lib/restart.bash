# shellcheck shell=bash
# Restart within the allocation: after the death of a rank, the launcher or a node, run the launch
# again as the next attempt, on healthy nodes.

: "${SLIPWAY_PROBE_SECONDS:=20}"
# Scripts without restarts, such as a Dask client, have none.
allocation=() lost_nodes=() spare_nodes=()

# reserve_spares: keep the last SLIPWAY_SPARES nodes of the job as spare nodes. Sets allocation and
# healthy_nodes, all nodes; planned_nodes, the number of nodes that train; spare_nodes; and what
# set_nodes sets. Fails if no node remains for training.
reserve_spares() {
    local spares=${SLIPWAY_SPARES:-0}
    allocation=("${nodes[@]}") healthy_nodes=("${nodes[@]}") failed=''
    declare -gA failures=()
    ((spares < ${#nodes[@]})) ||
        die too-few-nodes \
            "SLIPWAY_SPARES=$spares, but the job has $(plural ${#nodes[@]} node), and at least" \
            "one must train: request more nodes, or set a smaller value"
    planned_nodes=$((${#nodes[@]} - spares))
    spare_nodes=("${allocation[@]:planned_nodes}")
    set_nodes "${allocation[@]:0:planned_nodes}"
}

# set_nodes NODE...: run steps on these nodes from now on, in the order of the allocation. Sets
# nodes, nnodes and head_node. (slurm.bash overrides this default.)
set_nodes() {
    nodes=("$@") nnodes=$# head_node=$1
}

# run_attempts FUNCTION: run FUNCTION, which starts the launcher, as one attempt. After each attempt
# that has died, plan a restart and run it again, until plan_restart fails.
run_attempts() {
    restarts=0 restarts_without_progress=0
    terminate_earlier_ranks
    run_launch "$1"
    while attempt_has_died && plan_restart; do
        start_next_attempt
        start_guard
        start_scratch_watch
        run_launch "$1"
    done
}

# attempt_has_died: return 0 if the attempt ended without a cause, without a verdict and without a
# stop signal. It has also died if its verdict says that its ranks stopped because their launcher
# died; mpirun's daemons send them SIGTERM in that case. For a user script, exit code 2 (usage) or
# 78 counts as a verdict, and so does 0 without an open slipway.Session. plan_restart checks the
# other conditions.
attempt_has_died() {
    [ "$code" != "$EXIT_CONFIG" ] && [ "$cancelled" = 0 ] && ! attempt_has_cause || return 1
    read_verdict
    if [ -n "$SLIPWAY_SCRIPT" ]; then
        [ "$code" != 2 ] || return 1
        [ "$code" != 0 ] || attempt_has_open_session || return 1
    fi
    # mpirun 5 can exit with 0 after it has lost a node.
    [ -z "$state" ] || [ "$state $reason" = "stopped launcher" ] ||
        { [ "$state $reason" = "stopped signal" ] && launch_crashed; }
}

# launch_crashed: return 0 if the launcher was killed by a signal that is not a request to stop: its
# exit code is 128 plus ABRT, BUS, FPE, KILL or SEGV.
launch_crashed() {
    [[ $code =~ ^(134|135|136|137|139)$ ]]
}

# plan_restart: choose the nodes for the next attempt. Returns 1, and logs why, if the job is not
# restarted. Sets failed, the node on which a process was killed first, if the launcher reports it,
# and requeue_reason if the job is to be requeued.
plan_restart() {
    local known=${#lost_nodes[@]} new=() lost missing step
    trap 'time_limit_came=1; terminate_step' USR1
    trap 'cancelled=1; terminate_step' TERM INT HUP
    if [ "$SLIPWAY_MAX_RESTARTS" = 0 ]; then
        terminate_leftover_ranks
        return 1
    fi
    cancel_leftover_steps
    find_healthy_nodes || [ -n "${time_limit_came:-}" ] || return 1
    terminate_leftover_ranks
    [ "$cancelled" = 0 ] || return 1
    [ ${#lost_nodes[@]} = "$known" ] || # Bash 4.4 treats an empty slice as an unset variable
        new=("${lost_nodes[@]:known}")
    lost=$(count_common new nodes)
    if [ "$lost" = 0 ] && [ -n "$SLIPWAY_SCRIPT" ] && ! run_has_session; then
        return 1
    fi
    if [ -n "${time_limit_came:-}" ]; then
        plan_requeue_after_death "$lost"
        return 1
    fi
    missing=$((nnodes - $(count_common nodes healthy_nodes)))
    failed=$(find_failed_node 2>/dev/null <"$log_dir/stderr.log") || : # no launch, no messages
    warn_of_death ${#new[@]}
    [ ${#new[@]} = 0 ] || notify exclude "$last_message"
    if [ "$restarts" = "$SLIPWAY_MAX_RESTARTS" ]; then
        warn no-restart "restarted $(plural "$restarts" time), the limit of SLIPWAY_MAX_RESTARTS"
        return 1
    fi
    step=$(resumable_step)
    if ((step > first_step)); then
        restarts_without_progress=0
    elif [ "$missing" = 0 ] && ((++restarts_without_progress > 1)); then
        warn no-restart \
            "two attempts have died at step $step without saving a later step: not restarted"
        return 1
    fi
    choose_nodes
}

# count_common ARRAY1 ARRAY2: print how many nodes of the first array are also in the second. The
# arguments are the names of the arrays.
count_common() {
    local -n one=$1 other=$2
    local node count=0
    for node in "${one[@]}"; do
        [[ " ${other[*]} " != *" $node "* ]] || count=$((count + 1))
    done
    echo "$count"
}

# plan_requeue_after_death LOST: handle an attempt that died as the time limit came, with LOST of
# its nodes lost. Sets requeue_reason if a node was lost or a step was saved.
plan_requeue_after_death() {
    if [ "$1" != 0 ] || attempt_made_progress; then
        requeue_reason="out of time after an attempt that died"
    else
        warn no-restart "attempt $attempt: out of time, and it died without saving a step"
    fi
}

# warn_of_death LOST: warn that the last attempt died, and why. LOST is the number of nodes lost
# since.
warn_of_death() {
    local node words=()
    if [ "$1" != 0 ]; then
        for node in "${lost_nodes[@]: -$1}"; do
            words+=("$node (${node_states[$node]:-})")
        done
        warn node-lost \
            "attempt $attempt: lost $(join_by ', ' "${words[@]}"): no process starts there"
    elif [ -n "$failed" ]; then
        warn rank-killed \
            "attempt $attempt: a process on $failed was killed; see $log_dir/stderr.log"
    else
        warn rank-failed "attempt $attempt: $(last_log_line)"
    fi
}

# run_has_session: return 0 if the user script has started slipway.Session in any attempt.
run_has_session() {
    [ -f "$RUN_DIR/status.json" ] || [ -f "$RUN_DIR/sessions" ]
}

# attempt_has_session: return 0 if the user script has started slipway.Session in the last attempt.
attempt_has_session() {
    local newest
    find_newest_status
    grep --quiet --no-messages "\"attempt\": $attempt," "$newest"
}

# attempt_has_open_session: return 0 if the newest session of the last attempt is not done. A
# session in another folder than the run folder leaves no verdict when it is done, because others
# may follow.
attempt_has_open_session() {
    local newest
    find_newest_status
    grep --quiet --no-messages "\"attempt\": $attempt, \"state\": \"[^d]" "$newest"
}

# find_newest_status: find the newest status.json in all session folders. Sets newest, its path, or
# empty.
find_newest_status() {
    local folder folders
    find_session_folders
    newest=
    for folder in "${folders[@]}"; do
        [ -f "$folder/status.json" ] || continue
        [ "$newest" -nt "$folder/status.json" ] || newest=$folder/status.json
    done
}

# find_session_folders: list the run folder and the folders of sessions outside it. Sets folders.
find_session_folders() {
    local folder
    folders=("$RUN_DIR")
    [ -f "$RUN_DIR/sessions" ] || return 0
    while IFS= read -r folder; do
        [[ $folder == /* ]] || folder=$RUN_DIR/$folder
        folders+=("$folder")
    done <"$RUN_DIR/sessions"
}

# attempt_made_progress: return 0 if the last attempt has saved a later step than first_step. For a
# script without slipway.Session, only the step of its own verdict is known, which must not be 0.
attempt_made_progress() {
    if [ -n "$SLIPWAY_SCRIPT" ] && ! run_has_session; then
        [[ ${step:-} =~ ^0*[1-9][0-9]*$ ]]
    else
        (($(resumable_step) > first_step))
    fi
}

# resumable_step: print the step of the checkpoint from which the run would resume, or 0. With
# several sessions it is the sum of their steps.
resumable_step() {
    local folder name folders sum=0
    find_session_folders
    for folder in "${folders[@]}"; do
        # List the folder first, so that NFS reads the link from the server, not from its cache.
        : "$folder/checkpoints"/*
        name=$(readlink -- "$folder/checkpoints/latest" 2>/dev/null) || :
        [[ ! $name =~ ^step_0*([0-9]+)$ ]] || sum=$((sum + BASH_REMATCH[1]))
    done
    echo "$sum"
}

# start_next_attempt: begin the next attempt on chosen_nodes, with its own number, port and plan.
start_next_attempt() {
    restarts=$((restarts + 1))
    report_usage || : # of the last attempt, before its nodes are replaced
    held_since=$SECONDS
    activate_chosen_nodes
    begin_attempt $((attempt + 1))
    warn restarted \
        "restart $restarts of at most $SLIPWAY_MAX_RESTARTS: attempt $attempt resumes from step" \
        "$(resumable_step), on $(join_by ', ' "${nodes[@]:0:8}")${nodes[8]:+, ...}"
    notify restart "$last_message"
    export_plan
    master_address_is_found='' # open_rendezvous finds it again
    # Old ranks that a network failure has separated must not connect to the new ones.
    [ -z "${MASTER_PORT:-}" ] || first_port=$((MASTER_PORT + 1))
}
