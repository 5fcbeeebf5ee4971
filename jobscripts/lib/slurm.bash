# shellcheck shell=bash
# Slurm (20.11 or later) as the scheduler: the allocation, job steps on its nodes, requeueing.

source "${BASH_SOURCE[0]%/*}/job.bash"

readonly SCHEDULER_COMMANDS=(srun scontrol)
readonly GUARD=slipway-guard # name of the guard's job step
readonly STRAY_SECONDS=60 # time in which a requeued job can get its previous run's SIGTERM
readonly SCRATCH_WATCH=slipway-scratch # name of start_scratch_watch's job step
readonly STEP=slipway-step # all other job steps are named STEP-run_mark
# Options of a helper step, which must hold no resources that the ranks need. Before 22.05 --overlap
# shares the cores of job steps only, and a step without --gres=none holds all GPUs of the job.
readonly HELPER_OPTIONS=(--cpu-bind=none --gres=none)
# Patterns for Slurm's record of the job: it has GPUs; it has whole GPUs, not shards or MPS shares.
readonly HAS_GPUS='(GRES|TRES|TresPer[A-Za-z]*)=[^ ]*(gpu|shard|mps)[:=]'
readonly HAS_WHOLE_GPUS='(GRES|TRES|TresPer[A-Za-z]*)=([^ ]*[:/,])?gpu[:=]'
readonly verdict_seconds=20 # time to wait for the ranks, as scancel can end srun before they saved

# find_allocation: read the allocation from Slurm's variables, as far as slurm_record, the output of
# `scontrol show job`, shows that they belong to this job. Sets nodes, nnodes, head_node, this_node,
# cpus (of one node), ranks_per_node, world_size, gpus_per_node, gpu_options, cluster, scratch_id
# and first_port; adds the name and memory of job steps to srun_options. Fails if the nodes cannot
# train together, for example with different numbers of GPUs (use_smallest_gpu_count). (Each
# scheduler file defines it.)
find_allocation() {
    local size=${SLURM_HET_SIZE:-1} counts
    srun_options+=(--job-name="$STEP-$run_mark")
    if [ -n "${slurm_record:-}" ]; then
        [[ $slurm_record =~ ^JobId=[0-9]+\ HetJobId=[1-9] ]] || size=1
    else
        refuse_lost_task
        # Variables inherited from a heterogeneous job have that job's number, not this job's.
        [ "${SLURM_JOB_ID_HET_GROUP_0:-$SLURM_JOB_ID}" = "$SLURM_JOB_ID" ] || size=1
        warn scheduler-silent \
            "Slurm does not show this job: the number of GPUs of each node cannot be checked, and" \
            "job steps do not request GPUs explicitly${SLURM_ARRAY_JOB_ID:+; it may be a task of \
the array $SLURM_ARRAY_JOB_ID, but is called $job_id here}"
    fi
    [ "$size" = 1 ] ||
        die heterogeneous-job \
            "this is a heterogeneous job of $size components, but a run needs equal nodes: submit" \
            "it as one component"
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    ((${#nodes[@]} > 0 && ${#nodes[@]} >= $(count_nodes))) ||
        die no-nodes \
            "scontrol lists ${#nodes[@]} of the $(count_nodes) nodes of $SLURM_JOB_NODELIST:" \
            "submit the job again"
    mapfile -t counts < <(gpus_of_nodes)
    unset_inherited_slurm_variables
    srun_options+=(--mem=0) # all of the job's memory, shared with other job steps
    this_node=${SLURMD_NODENAME:-}
    reserve_spares
    [ "${SLIPWAY_SPARES:-0}${SLIPWAY_SHRINK:-0}" = 00 ] || [ -n "${interactive:-}" ] ||
        grep --quiet '^#SBATCH --no-kill' "$script_file" ||
        warn no-kill-missing \
            "Slurm ends this job when it loses a node, because the job has no --no-kill option," \
            "which \`jobgen submit\` adds if SLIPWAY_SPARES or SLIPWAY_SHRINK is set"
    cpus=$(smallest_cpu_count "${SLURM_JOB_CPUS_PER_NODE:-${SLURM_CPUS_ON_NODE:-1}}")
    gpus_per_node=${SLURM_GPUS_ON_NODE:-$(count_items "${SLURM_JOB_GPUS:-}")}
    [ -z "${interactive:-}" ] || set_up_interactive_job
    use_smallest_gpu_count "${counts[@]}"
    find_gpu_options
    cluster=${SLURM_CLUSTER_NAME:-}
    scratch_id=$SLURM_JOB_ID # the number that an epilog gets, also for array tasks
    first_port=$((20000 + SLURM_JOB_ID % 10000)) # varies by job; ephemeral ports begin at 32768
    plan_ranks
}

# count_nodes: print the number of nodes of the job according to its environment, or 1.
count_nodes() {
    local count=${SLURM_JOB_NUM_NODES:-}
    [[ $count =~ ^[1-9][0-9]{0,6}$ ]] || count=1
    echo "$count"
}

# refuse_lost_task: fail if this may be a requeued array task that has begun a run under its array
# name while Slurm does not report the array. This job would begin a second run.
refuse_lost_task() {
    local begun="${SLURM_ARRAY_JOB_ID:-}_${SLURM_ARRAY_TASK_ID:-}"
    [ -n "${SLURM_RESTART_COUNT:-}" ] && [[ ${run_dir:-} == *-"$job_id" ]] || return 0
    begun=${run_dir%"$job_id"}$begun
    [ ! -e "$begun/job.sh" ] ||
        die scheduler-silent \
            "Slurm does not show this job, which may have begun the run in $begun: to continue" \
            "that run, use sbatch $begun/job.sh"
}

# unset_inherited_slurm_variables: unset the variables that srun takes as options of a job step: its
# size, binding and layout. Each srun in this library passes these options itself. The variables may
# come from the job that submitted this one, because Slurm overwrites only those for which this job
# requests a value. According to Slurm's record of this job, also unset variables of an array, of
# restarts and of GPUs. CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES stay if the record shows no
# GPUs: at a site whose Slurm does not manage GPUs, the user has set them, and without them a
# process would use all GPUs.
unset_inherited_slurm_variables() {
    local name
    for name in "${!SLURM_@}" "${!SRUN_@}"; do
        case $name in
            SLURM_JOB_* | SLURM_TASKS_PER_NODE) ;; # Slurm sets these for every job
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
                "$name=${!name} was set outside and is kept, because Slurm has allocated no GPUs" \
                "to this job"
    done
}

# gpus_of_nodes: print how many GPUs the job was given on its nodes: one line for each group of
# nodes in Slurm's record (scontrol --details), such as GRES=gpu:a100:2(IDX:0,3),gpu:v100:1(IDX:1).
# (slurm.bash and pbs.bash each define it.)
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

# find_gpu_options: find the srun options of a job step that gets all GPUs of the job on each of its
# nodes. Sets gpu_options. They are needed because a job may have requested GPUs by --gpus-per-task,
# and a step of one task would then get the GPUs of one task. Without --gpu-bind each rank sees all
# GPUs; with --gpu-bind=none, Slurm 22.05 sets no GPU variables for it.
find_gpu_options() {
    gpu_options=()
    [[ ! ${slurm_record:-} =~ $HAS_WHOLE_GPUS ]] || gpu_options=(--gres=gpu:"$gpus_per_node")
    [ "${gpu_options[*]}" != --gres=gpu:0 ] || gpu_options=(--gres=none)
}

# set_nodes NODE...: run job steps on these nodes from now on, in the order of the allocation. Sets
# nodes, nnodes, head_node and on_head_node, and in srun_options the nodes' names, unless these are
# all nodes. (Overrides the default in restart.bash.)
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

# set_up_interactive_job: adapt to salloc, inside which this script may run on another machine.
# Slurm's variables there may describe another job, or lack the number of GPUs. The script may also
# run in a job step that holds the cores, so new steps must not wait for it (--overlap). Sets
# gpus_per_node and on_head_node; changes srun_options. Fails if no job step starts on the first
# node.
set_up_interactive_job() {
    local step line=$'\nslipway-gpus (0|[1-9][0-9]{0,3})\n'
    srun_options+=(--overlap)
    step=(srun --nodes=1 --ntasks=1 "${srun_options[@]}" --nodelist="$head_node")
    if [ "${SLURMD_NODENAME:-}" != "$head_node" ]; then
        on_head_node=(srun)
        set_nodes "${nodes[@]}" # adds the options to on_head_node
    fi
    [ ${#on_head_node[@]} -gt 0 ] || [ -z "${SLURM_GPUS_ON_NODE:-}" ] || return 0
    # shellcheck disable=SC2016 # the shell on the node expands it
    capture_program_output 60 "${step[@]}" sh -c 'echo "slipway-gpus ${SLURM_GPUS_ON_NODE:-0}"' ||
        die node-not-ready "no job step starts on $head_node$step_failure"
    # Use the last such line, as a TaskProlog may print others.
    [[ $'\n'$output$'\n' =~ .*$line ]] ||
        die node-not-ready "$head_node does not report how many GPUs it has, but ${output@Q}"
    gpus_per_node=${BASH_REMATCH[1]}
}

# log_missing_environment: warn if the settings are missing because of --export=NONE or
# SBATCH_EXPORT=NONE. (Overrides the default in job.bash.)
log_missing_environment() {
    local why="the job did not get the submission's environment (--export=NONE or SBATCH_EXPORT)"
    [ "${SLURM_EXPORT_ENV:-ALL}" = NONE ] || return 0
    if declare -F given >/dev/null; then # \`jobgen submit\` wrote this script
        warn environment-left "$why; it got the settings, and PATH is the node's default"
    else
        warn environment-left \
            "$why: \`sbatch --export=ALL\` passes the settings; \`jobgen submit\` writes them" \
            "into the script"
    fi
}

# count_items LIST: print the number of elements in a comma-separated list.
count_items() {
    local list
    IFS=, read -r -a list <<<"$1"
    echo "${#list[@]}"
}

# smallest_cpu_count LIST: print the smallest number in Slurm's list of CPUs per node, such as
# 8(x2),4.
smallest_cpu_count() {
    local part count smallest=''
    while IFS= read -r -d , part; do
        count=${part%%(*}
        [[ $count =~ ^[1-9][0-9]*$ ]] || continue
        [ -n "$smallest" ] && ((smallest <= count)) || smallest=$count
    done <<<"$1,"
    echo "${smallest:-1}"
}

# handle_stop_signal: do nothing in a batch job: scancel and preemption signal all processes of a
# job, so the ranks get the signal from Slurm. Inside salloc the signal is Ctrl-C, which only this
# script gets, so request a stop. (Each scheduler file defines it.)
handle_stop_signal() {
    [ -z "${interactive:-}" ] || request_stop user
}

# signal_is_stray: return 0 if SIGTERM was sent to this job's previous run. A job that Slurm has
# requeued after a node failure can get that signal as it starts. The signal counts as stray if it
# came in the first STRAY_SECONDS and before a session began, and if Slurm neither ends nor preempts
# this job. Queries Slurm only once, because KillWait may be running. (Overrides the default in
# signals.bash.)
signal_is_stray() {
    local record
    [ -n "${restarted:-}" ] && [ -n "${sigterm_at:-}" ] && ((sigterm_at < STRAY_SECONDS)) &&
        ! attempt_has_session || return 1
    record=$(timeout --kill-after=5 "$SLIPWAY_PROBE_SECONDS" \
        scontrol --oneliner show job "$job_id") || return 1
    [[ $record =~ \ JobState=RUNNING\  && ! $record =~ \ PreemptTime=[^\ N] ]]
}

# watch_time_limit: do nothing, because Slurm sends SIGUSR1 as the script's --signal directive
# requests. (Each scheduler file defines it.)
watch_time_limit() {
    :
}

# resubmit METHOD: requeue this job. Sets next_job. Fails if Slurm refuses, if the job is being
# cancelled, and inside salloc. (Each scheduler file defines it.)
resubmit() {
    if [ -n "${interactive:-}" ]; then
        warn no-requeue "an interactive allocation cannot be requeued"
        return 1
    fi
    # Slurm would also requeue a job that is just being cancelled.
    local state
    state=$(job_field JobState)
    if [ "$state" != RUNNING ]; then
        warn no-requeue "Slurm reports the job as ${state:-unknown}, not RUNNING: not requeued"
        return 1
    fi
    timeout 60 scontrol requeue "$job_id" || return 1
    next_job=$job_id
}

# cancel_leftover_steps: kill the ranks that a killed srun left running. They are in job steps with
# this run's name. Steps with other names belong to a user, such as a shell by `srun --overlap
# --pty`, or to another run in this job. From now on new steps overlap, because on a node that does
# not respond scancel hangs and the old step keeps its cores. (Overrides the default in
# leftovers.bash.)
cancel_leftover_steps() {
    local step name
    export_to_ranks SLURM_OVERLAP=1
    while read -r step name; do
        [[ $step =~ \.[0-9]+$ ]] && [ "$name" = "$STEP-$run_mark" ] || continue
        timeout --kill-after=5 20 scancel --signal=KILL "$step" 2>/dev/null &
    done < <(timeout 20 squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format='%i %j' \
        2>/dev/null)
}

# terminate_earlier_ranks: do nothing, because Slurm ends all steps of a job that it requeues.
# (Overrides the default in leftovers.bash.)
terminate_earlier_ranks() {
    :
}

# start_scratch_watch: start a job step on each other node that removes the scratch folder when the
# job ends (watch_scratch.sh). It must start early, because Slurm starts no step in a job that it is
# ending. Sets scratch_watch, the process of its srun. (Overrides the default in scratch.bash.)
start_scratch_watch() {
    local node others=()
    [ -n "${scratch_record:-}" ] && ! scratch_watch_runs || return 0
    for node in "${healthy_nodes[@]}"; do
        [ "$node" = "${SLURMD_NODENAME:-}" ] || others+=("$node")
    done
    [ ${#others[@]} -gt 0 ] || return 0
    (
        close_descriptors
        exec srun --job-name="$SCRATCH_WATCH" --overlap --no-kill --wait=0 --mpi=none \
            "${HELPER_OPTIONS[@]}" --mem=0 --export=ALL --nodes=${#others[@]} \
            --ntasks=${#others[@]} --ntasks-per-node=1 --cpus-per-task=1 \
            --nodelist="$(join_by , "${others[@]}")" \
            sh "$lib/watch_scratch.sh" "$scratch_record" "$job_id.$run_mark.*" "$scratch"
    ) </dev/null >/dev/null 2>&1 &
    scratch_watch=$!
}

# scratch_watch_runs: return 0 if the srun of that job step runs. (Overrides the default in
# scratch.bash.)
scratch_watch_runs() {
    [ -n "${scratch_watch:-}" ] && kill -0 "$scratch_watch" 2>/dev/null
}

# stop_scratch_watch: stop that job step, if there is one. (Overrides the default in
# scratch.bash.)
stop_scratch_watch() {
    [ -z "${scratch_watch:-}" ] || kill "$scratch_watch" 2>/dev/null || :
    scratch_watch=''
}

# start_guard: start guard.sh on another node. With --no-kill, Slurm keeps a job running whose first
# node, and so this script, has died. guard.sh then requeues the job, or cancels it if
# SLIPWAY_MAX_REQUEUES is reached. Sets guard, the process of its srun; guard_node; and heartbeat, a
# descriptor that stops the heartbeat when this script ends. (Overrides the default in
# leftovers.bash.)
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
    if ((count < ${SLIPWAY_MAX_REQUEUES:-0})); then # unset if the site does not resume jobs
        act=(scontrol requeue "$job_id")
    fi
    touch -- "$RUN_DIR/.heartbeat.$job_id" 2>/dev/null || :
    [ -n "${heartbeat:-}" ] || exec {heartbeat}> >(
        trap '' TERM USR1 INT HUP
        # --no-create: do not make the file again after stop_guard has removed it
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

# stop_guard: stop the guard, if there is one. (Overrides the default in leftovers.bash.)
stop_guard() {
    [ -n "${guard:-}" ] || return 0
    kill "$guard" 2>/dev/null || :
    rm -f -- "$RUN_DIR/.heartbeat.$job_id"
    guard='' guard_node=''
}

# nodes_out_of_service SECONDS NODE...: print those of the nodes that Slurm reports as down, drained
# or not responding, as lines NODE STATE. (Overrides the default in healthy_nodes.bash.)
nodes_out_of_service() {
    sh "$lib/nodes_down.sh" "$@"
}

# job_has_ended JOB [CLUSTER]: return 0 if Slurm reports that the job has ended, does not know it
# any more, or shows that it is this very job (JOB can be an array task's own job number). Returns 1
# if the job has not ended, 2 if Slurm does not answer. Pass CLUSTER only for a cluster other than
# this job's. (Each scheduler file defines it.)
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

# foreign_job_has_ended JOB CLUSTER: query the other cluster. Clusters that share a Slurm database
# can query each other. (Overrides the default in attempts.bash.)
foreign_job_has_ended() {
    job_has_ended "$@"
}

# job_field NAME: print a field of this job from `scontrol show job`. (slurm.bash and pbs.bash each
# define it.)
job_field() {
    query_scheduler scontrol --oneliner show job "$job_id" | sed --quiet "s/.* $1=\([^ ]*\).*/\1/p"
}

# continue_command: print the shell command that continues the run. (Each scheduler file defines
# it.)
continue_command() {
    printf 'sbatch --nodes=%s %q\n' "${#allocation[@]}" "$RUN_DIR/job.sh"
}
