# shellcheck shell=bash
# What Slurm (20.11 or later) calls things: the allocation, steps on its nodes, requeueing.

source "${BASH_SOURCE[0]%/*}/job.bash"

readonly SCHEDULER_COMMANDS=(srun scontrol)
readonly GUARD=slipway-guard # the name of its step
readonly verdict_seconds=20 # after scancel srun can end while the ranks still save: at most so long

# find_allocation: read the allocation from Slurm's variables. Sets nodes, nnodes, head_node, cpus
# (of one node), ranks_per_node, world_size, gpus_per_node and first_port.
find_allocation() {
    local size=${SLURM_HET_SIZE:-1}
    [ "$size" = 1 ] ||
        die heterogeneous-job \
            "this is a heterogeneous job of $size parts, and a run needs equal nodes: submit it" \
            "as one part"
    mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    [ ${#nodes[@]} -gt 0 ] || die no-nodes "scontrol names no nodes for $SLURM_JOB_NODELIST"
    this_node=${SLURMD_NODENAME:-}
    reserve_spares
    [ "${SLIPWAY_SPARES:-0}${SLIPWAY_SHRINK:-0}" = 00 ] || [ -n "${interactive:-}" ] ||
        grep --quiet '^#SBATCH --no-kill' "$script_file" ||
        warn no-kill-missing \
            "Slurm ends a job with the first node that it loses, unless it has --no-kill, which" \
            "\`jobgen submit\` adds where SLIPWAY_SPARES or SLIPWAY_SHRINK is set"
    cpus=$(smallest_cpu_count "${SLURM_JOB_CPUS_PER_NODE:-${SLURM_CPUS_ON_NODE:-1}}")
    gpus_per_node=${SLURM_GPUS_ON_NODE:-$(count_words "${SLURM_JOB_GPUS:-}")}
    [ -z "${interactive:-}" ] || join_interactively
    scratch_id=$SLURM_JOB_ID # as an epilog knows it, of array tasks too
    first_port=$((20000 + SLURM_JOB_ID % 10000)) # differs from job to job; clients get 32768 and up
    plan_ranks
}

# use_nodes NODE...: those on which steps run from now on, in the order of the allocation. Sets
# nodes, nnodes, head_node, on_head_node, and in srun_options their names, unless it is all nodes.
use_nodes() {
    local word options=()
    nodes=("$@") nnodes=$# head_node=$1
    for word in "${srun_options[@]}"; do
        [[ $word == --nodelist=* ]] || options+=("$word")
    done
    srun_options=("${options[@]}")
    if [ ${#on_head_node[@]} -gt 0 ] || [ "${SLURMD_NODENAME:-$head_node}" != "$head_node" ]; then
        on_head_node=(srun --overlap --nodes=1 --ntasks=1 "${options[@]}" --nodelist="$head_node")
    fi
    [ "$nnodes" = ${#allocation[@]} ] || srun_options+=(--nodelist="$(join_by , "$@")")
}

# join_interactively: inside salloc this script may be on the login node, where Slurm does not say
# how many GPUs a node has; and what holds the cores of a step that it runs in must not be waited
# for. Sets gpus_per_node and on_head_node; changes srun_options.
join_interactively() {
    local step
    srun_options+=(--overlap)
    step=(srun --nodes=1 --ntasks=1 "${srun_options[@]}" --nodelist="$head_node")
    [ "${SLURMD_NODENAME:-}" = "$head_node" ] || on_head_node=("${step[@]}")
    [ -z "${SLURM_GPUS_ON_NODE:-}" ] || return 0
    # shellcheck disable=SC2016 # for the shell on the node
    output_of 60 "${step[@]}" sh -c 'echo "${SLURM_GPUS_ON_NODE:-0}"' ||
        die node-not-ready "no step starts on $head_node: see above"
    gpus_per_node=$output
}

# note_environment: with --export=NONE, or SBATCH_EXPORT=NONE, settings do not arrive.
note_environment() {
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

# stop_for_signal: ranks that a signal reaches have got it from Slurm itself, as scancel and
# preemption signal all processes of a job. Inside salloc it is Ctrl-C, for this script alone.
stop_for_signal() {
    [ -z "${interactive:-}" ] || request_stop user
}

# signal_is_stray: a job that Slurm has requeued after the loss of a node can get, as it starts, the
# SIGTERM that was for the ended one. This one Slurm neither ends nor preempts.
signal_is_stray() {
    [ -n "${restarted:-}" ] && [ "$(job_field JobState)" = RUNNING ] &&
        [[ $(job_field PreemptTime) =~ ^(None)?$ ]]
}

# watch_time_limit: nothing to do, as --signal in the directives warns this script by SIGUSR1.
watch_time_limit() {
    :
}

# again METHOD: put this very job back into the queue. Sets next_job. Fails if Slurm refuses, if the
# job is being cancelled, and inside salloc.
again() {
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

# end_old_steps: kill the ranks of a launch whose srun was killed, which live on. Not inside salloc,
# where steps may be somebody else's. From now on a step takes cores that such a step still holds on
# a node that does not answer; there scancel hangs.
end_old_steps() {
    local step name
    export_variables SLURM_OVERLAP=1
    [ -z "${interactive:-}" ] || return 0
    while read -r step name; do
        [[ $step =~ \.[0-9]+$ ]] && [ "$name" != "$GUARD" ] || continue
        timeout --kill-after=5 20 scancel --signal=KILL "$step" 2>/dev/null &
    done < <(timeout 20 squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format='%i %j' \
        2>/dev/null)
}

# end_earlier_ranks: nothing to do, as Slurm ends all steps of a job that it requeues.
end_earlier_ranks() {
    :
}

# watch_over_job: with --no-kill Slurm leaves a job running whose first node has died, with nobody
# in it. So guard.sh looks on another node whether this script lives, and requeues the job,
# or where it is not to go on by itself cancels it. Sets guard, the process of its srun, guard_node,
# and heart, a descriptor that ends the sign of life with this script.
watch_over_job() {
    local node act=(scancel "$job_id") count
    [ -z "${interactive:-}" ] && [ "${SLIPWAY_SPARES:-0}${SLIPWAY_SHRINK:-0}" != 00 ] || return 0
    if [ -n "${guard:-}" ] && kill -0 "$guard" 2>/dev/null; then
        [[ " ${healthy_nodes[*]} " != *" $guard_node "* ]] || return 0
    fi
    end_guard
    for node in "${healthy_nodes[@]}"; do
        [ "$node" = "${SLURMD_NODENAME:-}" ] || guard_node=$node
    done
    [ -n "${guard_node:-}" ] || return 0
    count=$(requeues_of_job)
    if ((count < ${SLIPWAY_MAX_REQUEUES:-0})); then # a site that resumes nothing has none
        act=(scontrol requeue "$job_id")
    fi
    touch -- "$RUN_DIR/.heart.$job_id" 2>/dev/null || :
    [ -n "${heart:-}" ] || exec {heart}> >(
        trap '' TERM USR1 INT
        # --no-create: once end_guard has removed it, it stays away
        while touch --no-create -- "$RUN_DIR/.heart.$job_id" 2>/dev/null || :; do
            read -r -t 10 || [ $? -gt 128 ] || exit 0
        done
    )
    srun --job-name="$GUARD" --overlap --nodes=1 --ntasks=1 --export=ALL \
        --nodelist="$guard_node" sh "$lib/guard.sh" "$RUN_DIR/.heart.$job_id" "$log_dir/guard.log" \
        "${SLURMD_NODENAME:-}" "$RUN_DIR/requeues" "$((count + 1)) $job_id" "${act[@]}" \
        </dev/null >/dev/null 2>&1 {heart}>&- &
    guard=$!
}

# end_guard: if there is one.
end_guard() {
    [ -n "${guard:-}" ] || return 0
    kill "$guard" 2>/dev/null || :
    rm -f -- "$RUN_DIR/.heart.$job_id"
    guard='' guard_node=''
}

# job_is_over JOB: whether Slurm says so, or has forgotten it; 2: it does not answer.
job_is_over() {
    local said code=0 running='RUNNING|COMPLETING|CONFIGURING|SUSPENDED|STOPPED|SIGNALING|RESIZING'
    said=$(timeout 20 scontrol --oneliner show job "$1" 2>&1) || code=$?
    case $code in
        0) [[ ! $said =~ JobState=($running) ]] ;;
        *) [[ $said =~ Invalid\ job\ id ]] || return 2 ;;
    esac
}

# job_field NAME: of `scontrol show job`.
job_field() {
    timeout 20 scontrol --oneliner show job "$job_id" | sed --quiet "s/.* $1=\([^ ]*\).*/\1/p"
}

# The command that continues the run, as one types it.
continue_command() {
    printf 'sbatch --nodes=%s %q\n' "${#allocation[@]}" "$RUN_DIR/job.sh"
}
