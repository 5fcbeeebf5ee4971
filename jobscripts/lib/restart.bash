# shellcheck shell=bash
# Restart within the allocation: after the death of a rank, the launcher or a node, run the launch
# again as the next attempt, on healthy nodes.

: "${SLIPWAY_PROBE_SECONDS:=20}"
spare_nodes=()
declare -A node_states=()

# reserve_spares: keep the last SLIPWAY_SPARES nodes of the job as spare nodes. Sets allocation and
# healthy_nodes, all nodes; lost_nodes, empty; planned_nodes, the number of nodes that train;
# spare_nodes; and what set_nodes sets. Fails if no node remains for training.
reserve_spares() {
    local spares=${SLIPWAY_SPARES:-0}
    allocation=("${nodes[@]}") healthy_nodes=("${nodes[@]}") lost_nodes=() failed=''
    declare -gA failures=()
    ((spares < ${#nodes[@]})) ||
        die too-few-nodes \
            "SLIPWAY_SPARES=$spares, but the job has $(plural ${#nodes[@]} node), and at least" \
            "one must train: request more nodes, or set a smaller value"
    planned_nodes=$((${#nodes[@]} - spares))
    spare_nodes=("${allocation[@]:planned_nodes}")
    set_nodes "${allocation[@]:0:planned_nodes}"
}

# run_attempts FUNCTION: run FUNCTION, which starts the launcher, as one attempt. After each attempt
# that has died, plan a restart and run it again, until plan_restart fails.
run_attempts() {
    restarts=0 restarts_without_progress=0
    terminate_earlier_ranks
    run_step "$1"
    while attempt_has_died && plan_restart; do
        start_next_attempt
        start_guard
        start_scratch_watch
        run_step "$1"
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
    local said
    said="attempt $attempt: $(describe_death "$1")"
    if [ "$1" != 0 ]; then
        warn node-lost "$said"
    elif [ -n "$failed" ]; then
        warn rank-killed "$said"
    else
        warn rank-failed "$said"
    fi
}

# describe_death LOST: print why the last attempt died. LOST is the number of nodes lost since.
describe_death() {
    local node words=()
    if [ "$1" != 0 ]; then
        for node in "${lost_nodes[@]: -$1}"; do
            words+=("$node (${node_states[$node]:-})")
        done
        echo "lost $(join_by ', ' "${words[@]}"): no process starts there"
    elif [ -n "$failed" ]; then
        echo "a process on $failed was killed; see $log_dir/stderr.log"
    else
        last_log_line
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

# find_healthy_nodes: start a process on each node of the job that is not lost, on all at the same
# time, within SLIPWAY_PROBE_SECONDS. Nodes that do not respond get a second try with three times
# that limit. A node is lost if it starts no process and the scheduler reports it as out of service.
# A node that only does not respond is left out of the next attempt, because a busy controller also
# makes nodes slow. Sets healthy_nodes and node_states, the scheduler's states of lost nodes, and
# adds to lost_nodes. Fails if a signal arrived, if this node starts no process or if no node does:
# then something else is wrong.
find_healthy_nodes() {
    local limit node silent=() found=() lost=()
    for node in "${allocation[@]}"; do
        [[ " ${lost_nodes[*]} " == *" $node "* ]] || silent+=("$node")
    done
    for limit in "$SLIPWAY_PROBE_SECONDS" "$(retry_limit)"; do
        run_to_file "$log_dir/answers" probe_nodes "$limit" "${silent[@]}" || return 1
        move_answered_nodes found
        [ ${#silent[@]} != 0 ] || break
        run_to_file "$log_dir/answers" nodes_out_of_service "$limit" "${silent[@]}" ||
            return 1
        move_answered_nodes lost
        [ ${#silent[@]} != 0 ] || break
    done
    if [ ${#found[@]} = 0 ] && ! echo >>"$log_dir/answers"; then
        warn no-restart "cannot write $log_dir/answers: is the disk full? The run is not restarted"
        return 1
    fi
    if [ ${#found[@]} = 0 ] || [[ " ${silent[*]} ${lost[*]} " == *" ${this_node:-/} "* ]]; then
        warn no-restart \
            "no process can be started on this node ($HOSTNAME): the run is not restarted"
        return 1
    fi
    healthy_nodes=()
    for node in "${allocation[@]}"; do # as the scheduler orders them
        [[ " ${found[*]} " != *" $node "* ]] || healthy_nodes+=("$node")
    done
    lost_nodes+=("${lost[@]}")
    [ ${#silent[@]} = 0 ] ||
        warn node-silent \
            "attempt $attempt: no process started within $limit s on" \
            "$(join_by ', ' "${silent[@]}"), but the scheduler reports no failure there: not used" \
            "until the next restart"
}

# retry_limit: print the time limit in seconds of the second try of a node or scheduler query.
retry_limit() {
    awk -v seconds="$SLIPWAY_PROBE_SECONDS" 'BEGIN { print 3 * seconds }'
}

# run_to_file FILE COMMAND...: run a command that has its own time limit and write its output to
# FILE. Fails if a signal arrived meanwhile.
run_to_file() {
    local before=${time_limit_came:-}
    step_may_run=1
    "${@:2}" >"$1" 2>/dev/null &
    wait_limited $! || :
    [ "$cancelled" = 0 ] && [ "${time_limit_came:-}" = "$before" ]
}

# move_answered_nodes ARRAY: move the nodes that are listed in logs/N/answers from `silent` to
# ARRAY. The file's lines are NODE [STATE]; other lines, which a launcher may print, are ignored.
# Sets node_states of these nodes.
move_answered_nodes() {
    local -n into=$1
    local node state rest=()
    for node in "${silent[@]}"; do
        if state=$(awk -v node="$node" '$1 == node && NF < 3 { print $2; found = 1; exit }
            END { exit !found }' "$log_dir/answers"); then
            into+=("$node")
            node_states[$node]=$state
        else
            rest+=("$node")
        fi
    done
    silent=("${rest[@]}")
}

# nodes_out_of_service SECONDS NODE...: print those of the nodes that the scheduler reports as
# unusable (down, drained, not responding), as lines NODE STATE, within this time limit. Prints
# nothing by default. (slurm.bash and pbs.bash override this default.)
nodes_out_of_service() {
    :
}

# probe_nodes SECONDS NODE...: print the name of each node on which a process starts within this
# time limit.
probe_nodes() {
    nodes=("${@:2}")
    for_each_node apart node_answers "$1"
}

# node_answers NUMBER SECONDS: start a process on the node of this number that prints the node's
# name.
node_answers() {
    "${launcher}_node" "$1" "$2" echo "${nodes[$1]}"
}

# choose_nodes: choose planned_nodes nodes from healthy_nodes, or fewer with SLIPWAY_SHRINK=1. Nodes
# with the fewest failures come first. A node that failed twice comes last, and with
# SLIPWAY_SHRINK=1 it is used only if no other node is healthy. Sets chosen_nodes. Fails, and sets
# requeue_reason, if too few nodes are healthy.
choose_nodes() {
    local node times chosen=' ' count=0
    count_failures
    for times in 0 1 2; do
        ((times < 2 || count == 0 || !${SLIPWAY_SHRINK:-0})) || break
        for node in "${healthy_nodes[@]}"; do
            if [ "${failures[$node]:-0}" = "$times" ] && ((count < planned_nodes)); then
                chosen+="$node "
                count=$((count + 1))
            fi
        done
    done
    if ((count == 0 || (count < planned_nodes && !${SLIPWAY_SHRINK:-0}))); then
        warn no-restart \
            "$count of $(plural "$planned_nodes" node) remain: SLIPWAY_SPARES reserves spare" \
            "nodes, and SLIPWAY_SHRINK=1 continues with fewer"
        requeue_reason="$count of $(plural "$planned_nodes" node) remain"
        return 1
    fi
    chosen_nodes=()
    for node in "${healthy_nodes[@]}"; do # as the scheduler orders them
        [[ $chosen != *" $node "* ]] || chosen_nodes+=("$node")
    done
    ((count == planned_nodes)) ||
        warn fewer-nodes \
            "continuing with $(plural "$count" node) instead of $planned_nodes: same samples, but" \
            "results are no longer bitwise identical; the next job uses all nodes"
}

# activate_chosen_nodes: use chosen_nodes for the next launch. Sets spare_nodes, the other healthy
# nodes; world_size; and what set_nodes sets.
activate_chosen_nodes() {
    local node
    set_nodes "${chosen_nodes[@]}"
    spare_nodes=()
    for node in "${healthy_nodes[@]}"; do
        [[ " ${nodes[*]} " == *" $node "* ]] || spare_nodes+=("$node")
    done
    world_size=$((nnodes * ranks_per_node))
}

# count_failures: count the failure of the node in `failed`, up to 2 per node, in failures. Warns at
# the second failure, so that an administrator checks the node.
count_failures() {
    [[ -n $failed && " ${healthy_nodes[*]} " == *" $failed "* ]] || return 0
    failures[$failed]=$((${failures[$failed]:-0} + 1))
    ((failures[$failed] > 1)) || return 0
    failures[$failed]=2
    warn node-suspect \
        "a process on $failed was killed for the second time: have an administrator check the node"
    notify exclude "$last_message"
}

# find_failed_node: print the node whose process was killed by a signal first. Reads the messages of
# torchrun or srun from standard input. Fails if they report none.
find_failed_node() {
    awk '
        $1 == "host" && $2 == ":" { host = $3 }
        $1 == "exitcode" && $3 ~ /^-[0-9]+$/ { print host; found = 1; exit }
        /^srun: error: [^ :]+: task [0-9]+: / && !/Exited with|Terminated/ {
            sub(":", "", $3)
            print $3
            found = 1
            exit
        }
        END { exit !found }
    '
}

# replace_lost_nodes: after a step failed before the launch, continue without the nodes that start
# no process and with others instead. Fails if all nodes respond or too few remain.
replace_lost_nodes() {
    local known=${#lost_nodes[@]} used=("${nodes[@]}" "${spare_nodes[@]}")
    [ "${SLIPWAY_SPARES:-0}${SLIPWAY_SHRINK:-0}" != 00 ] || return 1
    cancel_leftover_steps
    find_healthy_nodes || return 1
    (($(count_common used healthy_nodes) < ${#used[@]})) || return 1
    if ((${#lost_nodes[@]} > known)); then
        warn_of_death $((${#lost_nodes[@]} - known))
        notify exclude "$last_message"
    fi
    choose_nodes || return 1
    activate_chosen_nodes
    export_plan
    [ "${rendezvous:-0}" = 0 ] || find_master_address
    start_guard
    start_scratch_watch
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

# start_guard: start a guard if the scheduler keeps a job running whose first node has died. Does
# nothing by default. (slurm.bash overrides this default.)
start_guard() {
    :
}

# stop_guard: stop the guard. Does nothing by default. (slurm.bash overrides this default.)
stop_guard() {
    :
}

# cancel_leftover_steps: end the job steps that a killed launcher has left, if the scheduler can do
# that. Does nothing by default. (slurm.bash overrides this default.)
cancel_leftover_steps() {
    :
}

# terminate_leftover_ranks: end the processes that the launcher has left on healthy_nodes. Does
# nothing by default. (mpirun.bash and ssh.bash override this default.)
terminate_leftover_ranks() {
    :
}

# terminate_earlier_ranks: end the ranks of an earlier attempt of this run in this same job. A
# scheduler that requeues a job ends only the processes that it has started itself, not those of a
# remote shell, and ranks wait for a first node that vanished. (slurm.bash overrides this default.)
terminate_earlier_ranks() {
    local its_scheduler its_job its_cluster its_host its_process
    read_attempt_owner $((attempt - 1))
    ! is_own_job || terminate_ranks "$job_id.$run_mark.*"
}

# terminate_ranks LAUNCH [SECONDS]: end the ranks of these launches on healthy_nodes. LAUNCH is a
# launch_id, in which * matches anything. The ranks have SECONDS (0) to end before they are killed.
terminate_ranks() {
    step_may_run=1
    {
        nodes=("${healthy_nodes[@]}")
        for_each_node apart terminate_ranks_on_node "$1" "${2:-0}"
    } >/dev/null 2>&1 &
    wait_limited $! ||
        warn old-ranks "ranks of an earlier attempt may still run: ending them failed on at" \
        "least one node"
}

# terminate_ranks_on_node NUMBER LAUNCH [SECONDS]: do the same on the node of this number.
terminate_ranks_on_node() {
    "${launcher}_node" "$1" $((20 + ${3:-0})) sh "$lib/end_ranks.sh" "$2" "${3:-0}"
}
