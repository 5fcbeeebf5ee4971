# shellcheck shell=bash
# Healthy nodes: which nodes of the job still respond, and which of them the next attempt uses.

declare -A node_states=() failures=()

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
    loop_over_nodes apart node_answers "$1"
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
    record_node_failure
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

# record_node_failure: count the failure of the node in `failed`, up to 2 per node, in failures.
# Warns at the second failure, so that an administrator checks the node.
record_node_failure() {
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

# nodes_are_left_out: return 0 if the job has a node that the current attempt neither uses nor keeps
# as a spare, because it was lost or did not respond.
nodes_are_left_out() {
    local node
    for node in "${allocation[@]}"; do
        [[ " ${nodes[*]} ${spare_nodes[*]} " == *" $node "* ]] || return 0
    done
    return 1
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
