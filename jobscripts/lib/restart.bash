# shellcheck shell=bash
# Restart inside the allocation: after the death of a rank, of a launcher or of a node the launch is
# run again, as the next attempt, on nodes that are healthy.

: "${SLIPWAY_PROBE_SECONDS:=20}"
spare_nodes=()
declare -A node_states=()

# reserve_spares: of all nodes of the job the last SLIPWAY_SPARES wait until they are needed. Sets
# allocation, all of them; healthy_nodes, likewise; lost_nodes, none; planned_nodes, how many train;
# nodes and what set_nodes sets; and spare_nodes.
reserve_spares() {
    local spares=${SLIPWAY_SPARES:-0}
    allocation=("${nodes[@]}") healthy_nodes=("${nodes[@]}") lost_nodes=() failed=''
    declare -gA failures=()
    ((spares < ${#nodes[@]})) ||
        die too-few-nodes \
            "SLIPWAY_SPARES=$spares: the job has $(plural ${#nodes[@]} node), and one has to" \
            "train: ask for more nodes, or lower it"
    planned_nodes=$((${#nodes[@]} - spares))
    spare_nodes=("${allocation[@]:planned_nodes}")
    set_nodes "${allocation[@]:0:planned_nodes}"
}

# run_attempts FUNCTION: run the launch, which FUNCTION spells out, until it ends; and again after
# each attempt that has died, as long as that makes sense.
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

# attempt_has_died: whether it ended without a cause, without a verdict and without being asked to;
# or with the verdict of ranks that had to stop as their launcher died: mpirun's daemons send them
# SIGTERM then. The exit code of a user's script stands for a verdict if it is 2 (usage) or 78, and
# if it is 0 without slipway.Session; plan_restart has the rest.
attempt_has_died() {
    [ "$code" != "$EXIT_CONFIG" ] && [ "$cancelled" = 0 ] && ! attempt_has_cause || return 1
    read_verdict
    if [ -n "$SLIPWAY_SCRIPT" ]; then
        [ "$code" != 2 ] || return 1
        [ "$code" != 0 ] || attempt_has_open_session || return 1
    fi
    # mpirun 5 can end with 0 where it has lost a node
    [ -z "$state" ] || [ "$state $reason" = "stopped launcher" ] ||
        { [ "$state $reason" = "stopped signal" ] && launch_crashed; }
}

# launch_crashed: whether the launch was ended by a signal that asks for nothing: its exit code is
# 128 and ABRT, BUS, FPE, KILL or SEGV.
launch_crashed() {
    [[ $code =~ ^(134|135|136|137|139)$ ]]
}

# plan_restart: find the nodes for the next attempt. Fails, and says why, where there is to be none.
# Sets failed, the node where a process was killed first, if the launch says so; and requeue_reason,
# why the job is to be requeued, if it is.
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
    [ ${#lost_nodes[@]} = "$known" ] || # Bash 4.4 takes an empty array for an unset one there
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
    [ ${#new[@]} = 0 ] || notify exclude "$last_note"
    if [ "$restarts" = "$SLIPWAY_MAX_RESTARTS" ]; then
        warn no-restart "was restarted $(plural "$restarts" time) (SLIPWAY_MAX_RESTARTS)"
        return 1
    fi
    step=$(resumable_step)
    if ((step > first_step)); then
        restarts_without_progress=0
    elif [ "$missing" = 0 ] && ((++restarts_without_progress > 1)); then
        warn no-restart \
            "two attempts have died at step $step and saved nothing further: it is not restarted"
        return 1
    fi
    choose_nodes
}

# count_common ARRAY ARRAY: print how many nodes of the first are in the second one, too.
count_common() {
    local -n one=$1 other=$2
    local node count=0
    for node in "${one[@]}"; do
        [[ " ${other[*]} " != *" $node "* ]] || count=$((count + 1))
    done
    echo "$count"
}

# plan_requeue_after_death LOST: the time limit came while an attempt died, which has lost so many
# of its nodes. Sets requeue_reason if that, or a step that was saved, is a reason to requeue the
# job.
plan_requeue_after_death() {
    if [ "$1" != 0 ] || attempt_made_progress; then
        requeue_reason="out of time after an attempt that died"
    else
        warn no-restart "attempt $attempt: out of time, and it has died without saving a step"
    fi
}

# warn_of_death LOST: say why the last attempt died, after which so many more nodes were lost.
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

# describe_death LOST: of the last attempt, after which so many more nodes were lost.
describe_death() {
    local node words=()
    if [ "$1" != 0 ]; then
        for node in "${lost_nodes[@]: -$1}"; do
            words+=("$node (${node_states[$node]:-})")
        done
        echo "lost $(join_by ', ' "${words[@]}"), on which no process starts"
    elif [ -n "$failed" ]; then
        echo "a process on $failed was killed; see $log_dir/stderr.log"
    else
        last_log_line
    fi
}

# run_has_session: whether the script of a user has let slipway.Session begin, in some attempt.
run_has_session() {
    [ -f "$RUN_DIR/status.json" ] || [ -f "$RUN_DIR/sessions" ]
}

# attempt_has_session: likewise in the last attempt.
attempt_has_session() {
    local newest
    find_newest_status
    grep --quiet --no-messages "\"attempt\": $attempt," "$newest"
}

# attempt_has_open_session: likewise, and the session that began last is not done. One in another
# folder than the run folder leaves no verdict if it is done, as others may follow.
attempt_has_open_session() {
    local newest
    find_newest_status
    grep --quiet --no-messages "\"attempt\": $attempt, \"state\": \"[^d]" "$newest"
}

# find_newest_status: the status.json that a session wrote last, of all folders. Sets newest.
find_newest_status() {
    local folder folders
    find_session_folders
    newest=
    for folder in "${folders[@]}"; do
        [ -f "$folder/status.json" ] || continue
        [ "$newest" -nt "$folder/status.json" ] || newest=$folder/status.json
    done
}

# find_session_folders: the run folder, and those of sessions in other folders. Sets folders.
find_session_folders() {
    local folder
    folders=("$RUN_DIR")
    [ -f "$RUN_DIR/sessions" ] || return 0
    while IFS= read -r folder; do
        [[ $folder == /* ]] || folder=$RUN_DIR/$folder
        folders+=("$folder")
    done <"$RUN_DIR/sessions"
}

# attempt_made_progress: whether the last attempt has saved more steps than there were. Of a script
# without slipway.Session nothing but its own verdict is known, whose step must not be 0.
attempt_made_progress() {
    if [ -n "$SLIPWAY_SCRIPT" ] && ! run_has_session; then
        [[ ${step:-} =~ ^0*[1-9][0-9]*$ ]]
    else
        (($(resumable_step) > first_step))
    fi
}

# resumable_step: that of the checkpoint from which the run would continue, or 0; of several
# sessions the sum.
resumable_step() {
    local folder name folders sum=0
    find_session_folders
    for folder in "${folders[@]}"; do
        # The folder is opened first: so NFS asks the server for the link, too.
        : "$folder/checkpoints"/*
        name=$(readlink -- "$folder/checkpoints/latest" 2>/dev/null) || :
        [[ ! $name =~ ^step_0*([0-9]+)$ ]] || sum=$((sum + BASH_REMATCH[1]))
    done
    echo "$sum"
}

# find_healthy_nodes: ask all nodes of the job that are not lost to start a process, at the same
# time, within SLIPWAY_PROBE_SECONDS; and those that have not, once more, within three times that. A
# node is lost if it starts none and the scheduler says that it is out of service. One that is only
# silent, as a busy controller makes nodes, too, is left out this time. Sets healthy_nodes, adds to
# lost_nodes, and sets node_states, what the scheduler says of these. Fails if a signal came
# meanwhile, and if this very node starts no process, or none does: then something else is wrong.
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
        warn no-restart "$log_dir/answers cannot be written: is the disk full? It is not restarted"
        return 1
    fi
    if [ ${#found[@]} = 0 ] || [[ " ${silent[*]} ${lost[*]} " == *" ${this_node:-/} "* ]]; then
        warn no-restart \
            "no process can be started on this node ($HOSTNAME): it is not restarted"
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
            "$(join_by ', ' "${silent[@]}"), though the scheduler reports no failure there:" \
            "left out until the next restart"
}

# retry_limit: that of the second time that a node or the scheduler is asked, in seconds.
retry_limit() {
    awk -v seconds="$SLIPWAY_PROBE_SECONDS" 'BEGIN { print 3 * seconds }'
}

# run_to_file FILE COMMAND...: run what has a time limit of its own, with its output in FILE. Fails
# where a signal has ended it.
run_to_file() {
    local before=${time_limit_came:-}
    step_may_run=1
    "${@:2}" >"$1" 2>/dev/null &
    wait_limited $! || :
    [ "$cancelled" = 0 ] && [ "${time_limit_came:-}" = "$before" ]
}

# move_answered_nodes ARRAY: move those of `silent` that logs/N/answers names, on lines NODE
# [STATE], into ARRAY. Sets node_states of them. A launcher may print other lines, too.
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

# nodes_out_of_service SECONDS NODE...: print those of which the scheduler says, within so long,
# that no job can use them (down, drained, not responding), as lines NODE STATE. Nothing where there
# is none to ask.
nodes_out_of_service() {
    :
}

# probe_nodes SECONDS NODE...: let each print its name, within so long.
probe_nodes() {
    nodes=("${@:2}")
    for_each_node apart node_answers "$1"
}

# node_answers NUMBER SECONDS: let that node print its name.
node_answers() {
    "${launcher}_node" "$1" "$2" echo "${nodes[$1]}"
}

# choose_nodes: as many of healthy_nodes as are planned, or with SLIPWAY_SHRINK=1 fewer; those first
# that have failed least. One that failed twice comes last, and with SLIPWAY_SHRINK=1 not at all.
# Sets chosen_nodes. Fails if too few are left.
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
            "$count of $(plural "$planned_nodes" node) are left: SLIPWAY_SPARES keeps some" \
            "ready, and SLIPWAY_SHRINK=1 goes on with fewer"
        requeue_reason="$count of $(plural "$planned_nodes" node) are left"
        return 1
    fi
    chosen_nodes=()
    for node in "${healthy_nodes[@]}"; do # as the scheduler orders them
        [[ $chosen != *" $node "* ]] || chosen_nodes+=("$node")
    done
    ((count == planned_nodes)) ||
        warn fewer-nodes \
            "goes on with $(plural "$count" node) in place of $planned_nodes: the same samples," \
            "in other sums, so not bitwise as with all; the next job has all again"
}

# activate_chosen_nodes: sets nodes and what set_nodes sets, spare_nodes, the other healthy ones,
# and world_size.
activate_chosen_nodes() {
    local node
    set_nodes "${chosen_nodes[@]}"
    spare_nodes=()
    for node in "${healthy_nodes[@]}"; do
        [[ " ${nodes[*]} " == *" $node "* ]] || spare_nodes+=("$node")
    done
    world_size=$((nnodes * ranks_per_node))
}

# count_failures: of the node that failed, up to 2, in failures; the second time its administrator
# should look.
count_failures() {
    [[ -n $failed && " ${healthy_nodes[*]} " == *" $failed "* ]] || return 0
    failures[$failed]=$((${failures[$failed]:-0} + 1))
    ((failures[$failed] > 1)) || return 0
    failures[$failed]=2
    warn node-suspect \
        "a process on $failed was killed for the second time: its administrator should look at it"
    notify exclude "$last_note"
}

# find_failed_node: of a launch whose messages are on standard input: the one whose process was
# killed by a signal first, as torchrun or srun say it. Fails where they do not.
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

# replace_lost_nodes: a step on each node has failed, before the launch: go on without the nodes
# that start no process, if there are such, and others to take their place. Fails if not.
replace_lost_nodes() {
    local known=${#lost_nodes[@]} used=("${nodes[@]}" "${spare_nodes[@]}")
    [ "${SLIPWAY_SPARES:-0}${SLIPWAY_SHRINK:-0}" != 00 ] || return 1
    cancel_leftover_steps
    find_healthy_nodes || return 1
    (($(count_common used healthy_nodes) < ${#used[@]})) || return 1
    if ((${#lost_nodes[@]} > known)); then
        warn_of_death $((${#lost_nodes[@]} - known))
        notify exclude "$last_note"
    fi
    choose_nodes || return 1
    activate_chosen_nodes
    export_plan
    [ "${rendezvous:-0}" = 0 ] || find_master_address
    start_guard
    start_scratch_watch
}

# start_next_attempt: begin it, on chosen_nodes, with a number, a port and a plan of its own.
start_next_attempt() {
    restarts=$((restarts + 1))
    report_usage || : # of the last one, with its nodes
    held_since=$SECONDS
    activate_chosen_nodes
    begin_attempt $((attempt + 1))
    warn restarted \
        "restart $restarts of at most $SLIPWAY_MAX_RESTARTS: attempt $attempt from step" \
        "$(resumable_step), on $(join_by ', ' "${nodes[@]:0:8}")${nodes[8]:+, ...}"
    notify restart "$last_note"
    export_plan
    master_is_found='' # open_rendezvous looks for it
    # Ranks that live on behind a cut network must not find the new ones.
    [ -z "${MASTER_PORT:-}" ] || first_port=$((MASTER_PORT + 1))
}

# start_guard: where a scheduler leaves a job running whose first node has died.
start_guard() {
    :
}

# stop_guard: what that has started.
stop_guard() {
    :
}

# cancel_leftover_steps: those that may be left, where the scheduler knows them, of a launch whose
# launcher was killed.
cancel_leftover_steps() {
    :
}

# terminate_leftover_ranks: the processes on healthy_nodes, where the launcher leaves some.
terminate_leftover_ranks() {
    :
}

# terminate_earlier_ranks: those of an earlier attempt of this run in this very job. A scheduler
# that puts a job back into the queue ends on its nodes what it has started itself, and not what a
# remote shell has; and ranks whose first node went without a word wait for it.
terminate_earlier_ranks() {
    local its_scheduler its_job its_cluster its_host its_process
    read_attempt_owner $((attempt - 1))
    ! is_own_job || terminate_ranks "$job_id.$run_mark.*"
}

# terminate_ranks LAUNCH [SECONDS]: on healthy_nodes, of the launches that have this name; * stands
# for anything. They have so many seconds to end before they are killed.
terminate_ranks() {
    step_may_run=1
    {
        nodes=("${healthy_nodes[@]}")
        for_each_node apart terminate_ranks_on_node "$1" "${2:-0}"
    } >/dev/null 2>&1 &
    wait_limited $! ||
        warn old-ranks "ranks of an earlier attempt may live on: not every node could be" \
        "asked to end them"
}

# terminate_ranks_on_node NUMBER LAUNCH [SECONDS]: the same, on the node of that number.
terminate_ranks_on_node() {
    "${launcher}_node" "$1" $((20 + ${3:-0})) sh "$lib/end_ranks.sh" "$2" "${3:-0}"
}
