# shellcheck shell=bash
# What Slurm (20.11 or later) calls things: the allocation, steps on its nodes, requeueing.

source "${BASH_SOURCE[0]%/*}/job.bash"

readonly SCHEDULER_COMMANDS=(srun scontrol)
readonly GUARD=slipway-guard # the name of its step
readonly STRAY_SECONDS=60 # of a requeued job, in which it can get what was for the ended one
readonly SCRATCH_WATCH=slipway-scratch # that of start_scratch_watch
readonly STEP=slipway-step # with run_mark behind it that of all other steps of this script
# What a step asks for that only helps: it holds nothing that the ranks need. Before 22.05 --overlap
# shares the cores of steps alone, and a step that does not say otherwise holds all GPUs of the job.
readonly HELPER_OPTIONS=(--cpu-bind=none --gres=none)
# In Slurm's record: GPUs of the job, and those that are not shared by shards or MPS.
readonly HAS_GPUS='(GRES|TRES|TresPer[A-Za-z]*)=[^ ]*(gpu|shard|mps)[:=]'
readonly HAS_WHOLE_GPUS='(GRES|TRES|TresPer[A-Za-z]*)=([^ ]*[:/,])?gpu[:=]'
readonly verdict_seconds=20 # after scancel srun can end while the ranks still save: at most so long

# find_allocation: read the allocation from Slurm's variables, as far as they are of this job, which
# slurm_record says. Fails if numbers of GPUs differ (use_smallest_gpu_count). Sets nodes, nnodes,
# head_node, cpus (of one node), ranks_per_node, world_size, gpus_per_node, gpu_options,
# cluster and first_port; adds to srun_options the name and memory of steps.
find_allocation() {
    local size=${SLURM_HET_SIZE:-1} counts
    srun_options+=(--job-name="$STEP-$run_mark")
    if [ -n "${slurm_record:-}" ]; then
        [[ $slurm_record =~ ^JobId=[0-9]+\ HetJobId=[1-9] ]] || size=1
    else
        refuse_lost_task
        # The variables of a heterogeneous job have its own number, and not that of a job inside.
        [ "${SLURM_JOB_ID_HET_GROUP_0:-$SLURM_JOB_ID}" = "$SLURM_JOB_ID" ] || size=1
        warn scheduler-silent \
            "Slurm does not show this job: whether its nodes have equally many GPUs is unknown," \
            "and its steps ask for none by name${SLURM_ARRAY_JOB_ID:+; so is whether it is a task \
of the array $SLURM_ARRAY_JOB_ID, and its name here is $job_id}"
    fi
    [ "$size" = 1 ] ||
        die heterogeneous-job \
            "this is a heterogeneous job of $size parts, and a run needs equal nodes: submit it" \
            "as one part"
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    ((${#nodes[@]} > 0 && ${#nodes[@]} >= $(count_nodes))) ||
        die no-nodes \
            "scontrol names ${#nodes[@]} of the $(count_nodes) nodes of $SLURM_JOB_NODELIST:" \
            "submit the job again"
    mapfile -t counts < <(gpus_of_nodes)
    unset_inherited_slurm_variables
    srun_options+=(--mem=0) # all that the job has, without taking it from other steps
    this_node=${SLURMD_NODENAME:-}
    reserve_spares
    [ "${SLIPWAY_SPARES:-0}${SLIPWAY_SHRINK:-0}" = 00 ] || [ -n "${interactive:-}" ] ||
        grep --quiet '^#SBATCH --no-kill' "$script_file" ||
        warn no-kill-missing \
            "Slurm ends a job with the first node that it loses, unless it has --no-kill, which" \
            "\`jobgen submit\` adds where SLIPWAY_SPARES or SLIPWAY_SHRINK is set"
    cpus=$(smallest_cpu_count "${SLURM_JOB_CPUS_PER_NODE:-${SLURM_CPUS_ON_NODE:-1}}")
    gpus_per_node=${SLURM_GPUS_ON_NODE:-$(count_items "${SLURM_JOB_GPUS:-}")}
    [ -z "${interactive:-}" ] || set_up_interactive_job
    use_smallest_gpu_count "${counts[@]}"
    find_gpu_options
    cluster=${SLURM_CLUSTER_NAME:-}
    scratch_id=$SLURM_JOB_ID # as an epilog knows it, of array tasks too
    first_port=$((20000 + SLURM_JOB_ID % 10000)) # differs from job to job; clients get 32768 and up
    plan_ranks
}

# count_nodes: of the job, as its environment says; 1 where that does not.
count_nodes() {
    local count=${SLURM_JOB_NUM_NODES:-}
    [[ $count =~ ^[1-9][0-9]{0,6}$ ]] || count=1
    echo "$count"
}

# refuse_lost_task: fails where this may be a requeued task of an array that has begun a run under
# its name there, and Slurm does not say so: this job would begin another one.
refuse_lost_task() {
    local begun="${SLURM_ARRAY_JOB_ID:-}_${SLURM_ARRAY_TASK_ID:-}"
    [ -n "${SLURM_RESTART_COUNT:-}" ] && [[ ${run_dir:-} == *-"$job_id" ]] || return 0
    begun=${run_dir%"$job_id"}$begun
    [ ! -e "$begun/job.sh" ] ||
        die scheduler-silent \
            "Slurm does not show this job, which may have begun $begun before: continue that by" \
            "sbatch $begun/job.sh"
}

# unset_inherited_slurm_variables: unset what srun takes for options of a step: how large it is, how
# it is bound and laid out. Each srun here says that by itself; what the environment says may be of
# the job from inside whose this one was submitted, and Slurm sets over it what this one has asked
# for, no more. Likewise, by Slurm's record of this job: numbers of an array, restarts and GPUs.
# Which GPUs its processes see stays, where that record names none: at a site whose Slurm knows of
# no GPUs somebody has chosen them, and without them a process would see all.
unset_inherited_slurm_variables() {
    local name
    for name in "${!SLURM_@}" "${!SRUN_@}"; do
        case $name in
            SLURM_JOB_* | SLURM_TASKS_PER_NODE) ;; # what Slurm itself says of every job
            SLURM_CPU_BIND* | SLURM_MEM_BIND* | SLURM_GPU_BIND | SLURM_TRES_* | SLURM_GRES* | \
                SLURM_STEP_GRES | SLURM_*_PER_* | SRUN_*_PER_* | SLURM_GPUS | SLURM_NTASKS | \
                SLURM_NPROCS | SLURM_HINT | SLURM_DIST* | SLURM_THREAD* | SLURM_CORE_SPEC | \
                SLURM_EXACT | SLURM_EXCLUSIVE | SLURM_WHOLE | SLURM_OVERLAP | SLURM_OVERCOMMIT | \
                SLURM_HOSTFILE | SLURM_ARBITRARY_NODELIST | SLURM_SPREAD_JOB | \
                SLURM_USE_MIN_NODES | SLURM_LABELIO | SLURM_*HET_*)
                unset -v "$name"
                ;;
        esac
    done
    [ -n "${slurm_record:-}" ] || return 0
    [[ $job_id == *_* ]] || unset -v "${!SLURM_ARRAY_@}"
    [ -n "${restarted:-}" ] || unset -v SLURM_RESTART_COUNT
    [[ ! $slurm_record =~ $HAS_GPUS ]] || return 0
    unset -v SLURM_GPUS_ON_NODE SLURM_JOB_GPUS
    [ "${SLIPWAY_DEVICE:-cpu}" != cpu ] || return 0
    for name in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES; do
        [ -z "${!name:-}" ] ||
            warn kept-variable \
                "$name=${!name} was set outside and is kept: Slurm has given this job no GPU that" \
                "it knows of"
    done
}

# gpus_of_nodes: how many the nodes of the job have been given, a line for nodes that Slurm's record
# (scontrol --details) names together: GRES=gpu:a100:2(IDX:0,3),gpu:v100:1(IDX:1).
gpus_of_nodes() {
    awk '$1 ~ /^Nodes=/ && match($0, / GRES=[^ ]*/) {
        granted = substr($0, RSTART + 6, RLENGTH - 6)
        gsub(/[(][^)]*[)]/, "", granted)
        kinds = split(granted, kind, ",")
        sum = 0
        for (number = 1; number <= kinds; number++) {
            words = split(kind[number], word, ":")
            if (word[1] == "gpu") sum += word[words]
        }
        print sum
    }' <<<"${slurm_record:-}"
}

# find_gpu_options: the GPUs of a step that has all of the job's on each of its nodes, for whatever
# the job has asked: with --gpus-per-task a step of one task would get those of one task. Without
# --gpu-bind each rank sees them all; with --gpu-bind=none Slurm 22.05 tells it of none. Sets
# gpu_options.
find_gpu_options() {
    gpu_options=()
    [[ ! ${slurm_record:-} =~ $HAS_WHOLE_GPUS ]] || gpu_options=(--gres=gpu:"$gpus_per_node")
    [ "${gpu_options[*]}" != --gres=gpu:0 ] || gpu_options=(--gres=none)
}

# set_nodes NODE...: those on which steps run from now on, in the order of the allocation. Sets
# nodes, nnodes, head_node, on_head_node, and in srun_options their names, unless it is all nodes.
set_nodes() {
    local word options=()
    nodes=("$@") nnodes=$# head_node=$1
    for word in "${srun_options[@]}"; do
        [[ $word == --nodelist=* ]] || options+=("$word")
    done
    srun_options=("${options[@]}")
    if [ ${#on_head_node[@]} -gt 0 ] || [ "${SLURMD_NODENAME:-$head_node}" != "$head_node" ]; then
        on_head_node=(srun --overlap --nodes=1 --ntasks=1 "${options[@]}" "${HELPER_OPTIONS[@]}"
            --nodelist="$head_node")
    fi
    [ "$nnodes" = ${#allocation[@]} ] || srun_options+=(--nodelist="$(join_by , "$@")")
}

# set_up_interactive_job: inside salloc this script may be on another machine, where Slurm does not
# say how many GPUs a node has, though another job may; and what holds the cores of a step that it
# runs in must not be waited for. Sets gpus_per_node and on_head_node; changes srun_options.
set_up_interactive_job() {
    local step line=$'\nslipway-gpus (0|[1-9][0-9]{0,3})\n'
    srun_options+=(--overlap)
    step=(srun --nodes=1 --ntasks=1 "${srun_options[@]}" --nodelist="$head_node")
    if [ "${SLURMD_NODENAME:-}" != "$head_node" ]; then
        on_head_node=(srun)
        set_nodes "${nodes[@]}" # which gives it its options
    fi
    [ ${#on_head_node[@]} -gt 0 ] || [ -z "${SLURM_GPUS_ON_NODE:-}" ] || return 0
    # shellcheck disable=SC2016 # for the shell on the node
    capture_program_output 60 "${step[@]}" sh -c 'echo "slipway-gpus ${SLURM_GPUS_ON_NODE:-0}"' ||
        die node-not-ready "no step starts on $head_node$step_failure"
    # The last such line, as a TaskProlog may print too.
    [[ $'\n'$output$'\n' =~ .*$line ]] ||
        die node-not-ready "$head_node does not say how many GPUs it has, but ${output@Q}"
    gpus_per_node=${BASH_REMATCH[1]}
}

# log_missing_environment: with --export=NONE, or SBATCH_EXPORT=NONE, settings do not arrive.
log_missing_environment() {
    local why="the environment of the submission is not here (--export=NONE, or SBATCH_EXPORT)"
    [ "${SLURM_EXPORT_ENV:-ALL}" = NONE ] || return 0
    if declare -F given >/dev/null; then # this script is from \`jobgen submit\`
        warn environment-left "$why; its settings are, and PATH is the node's own"
    else
        warn environment-left \
            "$why: \`sbatch --export=ALL\` brings the settings; \`jobgen submit\` writes them" \
            "into the script"
    fi
}

# smallest_cpu_count LIST: of the nodes of the job, from Slurm's form, 8(x2),4.
smallest_cpu_count() {
    local part count smallest=''
    while IFS= read -r -d , part; do
        count=${part%%(*}
        [[ $count =~ ^[1-9][0-9]*$ ]] || continue
        [ -n "$smallest" ] && ((smallest <= count)) || smallest=$count
    done <<<"$1,"
    echo "${smallest:-1}"
}

# handle_stop_signal: ranks that a signal reaches have got it from Slurm itself, as scancel and
# preemption signal all processes of a job. Inside salloc it is Ctrl-C, for this script alone.
handle_stop_signal() {
    [ -z "${interactive:-}" ] || request_stop user
}

# signal_is_stray: a job that Slurm has requeued after the loss of a node can get, as it starts, the
# SIGTERM that was for the ended one. It comes in the first STRAY_SECONDS, before the ranks have
# joined, and Slurm neither ends nor preempts this job. It is asked once: KillWait may be running.
signal_is_stray() {
    local record
    [ -n "${restarted:-}" ] && [ -n "${sigterm_at:-}" ] && ((sigterm_at < STRAY_SECONDS)) &&
        ! attempt_has_session || return 1
    record=$(timeout --kill-after=5 "$SLIPWAY_PROBE_SECONDS" \
        scontrol --oneliner show job "$job_id") || return 1
    [[ $record =~ \ JobState=RUNNING\  && ! $record =~ \ PreemptTime=[^\ N] ]]
}

# watch_time_limit: nothing to do, as --signal in the directives warns this script by SIGUSR1.
watch_time_limit() {
    :
}

# resubmit METHOD: put this very job back into the queue. Sets next_job. Fails if Slurm refuses, if
# the job is being cancelled, and inside salloc.
resubmit() {
    if [ -n "${interactive:-}" ]; then
        warn no-requeue "an interactive allocation does not return to the queue"
        return 1
    fi
    # Slurm would requeue a job that somebody is cancelling at this moment.
    local state
    state=$(job_field JobState)
    if [ "$state" != RUNNING ]; then
        warn no-requeue "the job is ${state:-unknown to Slurm}, not RUNNING"
        return 1
    fi
    timeout 60 scontrol requeue "$job_id" || return 1
    next_job=$job_id
}

# cancel_leftover_steps: kill the ranks of a launch whose srun was killed, which live on. They are
# in steps of this run's name; others are somebody's, such as a shell by `srun --overlap --pty`, or
# of another run in this job. From now on a step takes cores that such a step still holds on a node
# that does not answer; there scancel hangs.
cancel_leftover_steps() {
    local step name
    export_to_ranks SLURM_OVERLAP=1
    while read -r step name; do
        [[ $step =~ \.[0-9]+$ ]] && [ "$name" = "$STEP-$run_mark" ] || continue
        timeout --kill-after=5 20 scancel --signal=KILL "$step" 2>/dev/null &
    done < <(timeout 20 squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format='%i %j' \
        2>/dev/null)
}

# terminate_earlier_ranks: nothing to do, as Slurm ends all steps of a job that it requeues.
terminate_earlier_ranks() {
    :
}

# start_scratch_watch: in a job that it ends Slurm starts no step any more. So one that is there
# already removes scratch then, on each node but this (watch_scratch.sh). Sets scratch_watch, the
# process of its srun.
start_scratch_watch() {
    local node others=()
    [ -n "${scratch_record:-}" ] && ! scratch_watch_runs || return 0
    for node in "${healthy_nodes[@]}"; do
        [ "$node" = "${SLURMD_NODENAME:-}" ] || others+=("$node")
    done
    [ ${#others[@]} -gt 0 ] || return 0
    (
        [ -z "${heartbeat:-}" ] || exec {heartbeat}>&- # it is no sign of life of this script
        exec srun --job-name="$SCRATCH_WATCH" --overlap --no-kill --wait=0 --mpi=none \
            "${HELPER_OPTIONS[@]}" --mem=0 --export=ALL --nodes=${#others[@]} \
            --ntasks=${#others[@]} --ntasks-per-node=1 --cpus-per-task=1 \
            --nodelist="$(join_by , "${others[@]}")" \
            sh "$lib/watch_scratch.sh" "$scratch_record" "$job_id.$run_mark.*" "$scratch"
    ) </dev/null >/dev/null 2>&1 &
    scratch_watch=$!
}

# scratch_watch_runs: whether that step runs, as far as its srun says.
scratch_watch_runs() {
    [ -n "${scratch_watch:-}" ] && kill -0 "$scratch_watch" 2>/dev/null
}

# stop_scratch_watch: if there is one.
stop_scratch_watch() {
    [ -z "${scratch_watch:-}" ] || kill "$scratch_watch" 2>/dev/null || :
    scratch_watch=''
}

# start_guard: with --no-kill Slurm leaves a job running whose first node has died, with nobody
# in it. So guard.sh looks on another node whether this script lives, and requeues the job,
# or where it is not to go on by itself cancels it. Sets guard, the process of its srun, guard_node,
# and heartbeat, a descriptor that ends the sign of life with this script.
start_guard() {
    local node act=(scancel "$job_id") count
    [ -z "${interactive:-}" ] && [ "${SLIPWAY_SPARES:-0}${SLIPWAY_SHRINK:-0}" != 00 ] || return 0
    if [ -n "${guard:-}" ] && kill -0 "$guard" 2>/dev/null; then
        [[ " ${healthy_nodes[*]} " != *" $guard_node "* ]] || return 0
    fi
    stop_guard
    for node in "${healthy_nodes[@]}"; do
        [ "$node" = "${SLURMD_NODENAME:-}" ] || guard_node=$node
    done
    [ -n "${guard_node:-}" ] || return 0
    count=$(count_requeues)
    if ((count < ${SLIPWAY_MAX_REQUEUES:-0})); then # a site that resumes nothing has none
        act=(scontrol requeue "$job_id")
    fi
    touch -- "$RUN_DIR/.heartbeat.$job_id" 2>/dev/null || :
    [ -n "${heartbeat:-}" ] || exec {heartbeat}> >(
        trap '' TERM USR1 INT HUP
        # --no-create: once stop_guard has removed it, it stays away
        while touch --no-create -- "$RUN_DIR/.heartbeat.$job_id" 2>/dev/null || :; do
            read -r -t 10 || [ $? -gt 128 ] || exit 0
        done
    )
    srun --job-name="$GUARD" --overlap --nodes=1 --ntasks=1 --export=ALL \
        "${HELPER_OPTIONS[@]}" --mem=0 --nodelist="$guard_node" \
        sh "$lib/guard.sh" "$SLIPWAY_PROBE_SECONDS" "$(retry_limit)" \
        "$RUN_DIR/.heartbeat.$job_id" "$log_dir/guard.log" "${SLURMD_NODENAME:-}" "$job_id" \
        "$RUN_DIR/requeues" "$((count + 1))" "${act[@]}" \
        </dev/null >/dev/null 2>&1 {heartbeat}>&- &
    guard=$!
}

# stop_guard: if there is one.
stop_guard() {
    [ -n "${guard:-}" ] || return 0
    kill "$guard" 2>/dev/null || :
    rm -f -- "$RUN_DIR/.heartbeat.$job_id"
    guard='' guard_node=''
}

# nodes_out_of_service SECONDS NODE...: print those that Slurm says are down, drained or not
# responding.
nodes_out_of_service() {
    sh "$lib/nodes_down.sh" "$@"
}

# job_has_ended JOB [CLUSTER]: whether Slurm says so, or has forgotten it, or it is this very job
# under another name (a task of an array by its own number); 2: no answer. CLUSTER is not this job's
# own.
job_has_ended() {
    local said code=0 running='RUNNING|COMPLETING|CONFIGURING|SUSPENDED|STOPPED|SIGNALING|RESIZING'
    said=$(query_scheduler scontrol --oneliner ${2:+--clusters="$2"} show job "$1" 2>&1) || code=$?
    case $code in
        0)
            [[ ! $said =~ JobState=($running) ]] ||
                { [ -z "${2:-}" ] && [[ $said == "JobId=${SLURM_JOB_ID:-} "* ]]; }
            ;;
        *) [[ $said =~ Invalid\ job\ id ]] || return 2 ;;
    esac
}

# foreign_job_has_ended JOB CLUSTER: clusters that have a database in common know each other.
foreign_job_has_ended() {
    job_has_ended "$@"
}

# job_field NAME: of `scontrol show job`.
job_field() {
    query_scheduler scontrol --oneliner show job "$job_id" | sed --quiet "s/.* $1=\([^ ]*\).*/\1/p"
}

# The command that continues the run, as one types it.
continue_command() {
    printf 'sbatch --nodes=%s %q\n' "${#allocation[@]}" "$RUN_DIR/job.sh"
}
