# shellcheck shell=bash
# What OpenPBS, PBS Professional and Torque call things. Nothing warns of the time limit in a way
# that all sites share, so the script itself looks at the clock.

# The login shell of a job has reset PATH: what was on it at submission comes behind.
PATH=$PATH${PBS_O_PATH:+:$PBS_O_PATH}

source "${BASH_SOURCE[0]%/*}/job.bash"

readonly SCHEDULER_COMMANDS=(qstat)
readonly POLL_SECONDS=20

# read_arguments: PBS hands no arguments to a script, so they come in SLIPWAY_ARGS, quoted as in a
# shell. Sets arguments.
read_arguments() {
    arguments=()
    [ -n "${SLIPWAY_ARGS:-}" ] || return 0
    "${container[@]}" python3 "$lib/split_arguments.py" "$SLIPWAY_ARGS" >"$log_dir/arguments" ||
        die unclosed-quote "SLIPWAY_ARGS is ${SLIPWAY_ARGS@Q}, in which a quote is not closed"
    mapfile -d '' -t arguments <"$log_dir/arguments"
}

# find_allocation: read the allocation from PBS's variables, and what those do not say from qstat
# and from directives_*. Sets nodes, nnodes, head_node, cpus (of one node), ranks_per_node,
# world_size, gpus_per_node and first_port.
find_allocation() {
    local asked limit
    # A file of this node only, in which a node stands several times.
    mapfile -t nodes < <(awk '!seen[$0]++' "$PBS_NODEFILE")
    ((${#nodes[@]} > 0)) || die no-nodes "PBS_NODEFILE ($PBS_NODEFILE) names no nodes"
    # Of the job from inside whose this one was submitted by qsub -V.
    [[ $PBS_JOBID == *\[* ]] || unset -v PBS_ARRAY_INDEX PBS_ARRAY_ID PBS_ARRAYID
    this_node=${nodes[0]}
    reserve_spares
    asked=$(ask_for_job) ||
        warn scheduler-silent "qstat does not answer: without it nothing warns of the time limit"
    # NCPUS would be the number of threads where the job names one (ompthreads), so the server is
    # asked.
    cpus=$(share_of_node Resource_List.ncpus "${PBS_NUM_PPN:-$directives_cpus}" <<<"$asked")
    gpus_per_node=$(share_of_node Resource_List.ngpus "$directives_gpus" <<<"$asked")
    limit=$(to_seconds "$(job_field Resource_List.walltime <<<"$asked")")
    [ -z "$limit" ] || ((limit > save_seconds)) ||
        die time-too-short \
            "the job's time of $limit s is not longer than the $save_seconds s that are kept for" \
            "saving: give it more"
    scratch_id=$job_id
    # from 20000 on, as clients get 32768 and up; it differs from job to job
    first_port=$((20000 + 10#$(tr --delete --complement 0-9 <<<"$job_id" | tail --bytes=5) % 10000))
    plan_ranks
}

# use_nodes NODE...: those on which steps run from now on, in the order of the allocation. Sets
# nodes, nnodes and head_node.
use_nodes() {
    nodes=("$@") nnodes=$# head_node=$1
}

# share_of_node NAME DEFAULT: of a resource of the whole job, from the server's answer on standard
# input.
share_of_node() {
    local total
    total=$(job_field "$1")
    if [[ $total =~ ^(0|[1-9][0-9]*)$ ]] && ((total == 0 || total >= ${#allocation[@]})); then
        echo $((total / ${#allocation[@]}))
    else
        echo "$2"
    fi
}

# job_is_over JOB: whether the server says so, or has forgotten it; 2: it does not answer.
job_is_over() {
    local said code=0 id=$1
    [[ $id != *_* ]] || id="${id/_/[}]"
    said=$(timeout 20 qstat -f "$id" 2>&1) || code=$?
    case $code in
        0) [[ ! $said =~ job_state\ =\ [RES] ]] ;;
        *) [[ $said =~ (Unknown Job|has finished) ]] || return 2 ;;
    esac
}

# ask_for_job: what the server says of this job.
ask_for_job() {
    timeout --kill-after=5 20 qstat -f "$PBS_JOBID" 2>/dev/null
}

# job_field NAME: of that, from standard input.
job_field() {
    sed --quiet "s/^ *$1 = //p"
}

# to_seconds HH:MM:SS: nothing for anything else.
to_seconds() {
    [[ $1 =~ ^([0-9]+):([0-9]{2}):([0-9]{2})$ ]] || return 0
    echo $((10#${BASH_REMATCH[1]} * 3600 + 10#${BASH_REMATCH[2]} * 60 + 10#${BASH_REMATCH[3]}))
}

# watch_time_limit: send this script SIGUSR1 when no more than save_seconds are left. It ends with
# the script. Sets watcher, the descriptor by which it knows.
watch_time_limit() {
    exec {watcher}> >(
        trap '' TERM USR1 INT
        # read: end of file is the end of the script
        until time_is_nearly_up; do
            read -r -t "$POLL_SECONDS" || [ $? -gt 128 ] || exit 0
        done
        kill -USR1 $$
    )
}

# time_is_nearly_up: by the limit that qstat names now, as an administrator may have changed it.
time_is_nearly_up() {
    local limit
    limit=$(to_seconds "$(ask_for_job | job_field Resource_List.walltime)")
    [ -n "$limit" ] && ((limit - SECONDS <= save_seconds + POLL_SECONDS))
}

# qdel signals this script, but nothing that a remote shell started: the ranks learn it from STOP.
stop_for_signal() {
    request_stop user
}

# again METHOD: requeue puts this very job back into the queue, chain submits the next one. Sets
# next_job.
again() {
    if [ -n "${interactive:-}" ]; then
        warn no-requeue "an interactive job does not return to the queue"
        return 1
    fi
    local after=(-W "depend=afterany:$PBS_JOBID")
    case $1 in
        requeue)
            timeout 60 qrerun "$PBS_JOBID" || return 1
            next_job=$job_id
            ;;
        chain)
            # OpenPBS lets no job depend on a task of an array: there the next one waits by itself
            # (refuse_company).
            [[ $PBS_JOBID != *\[* ]] || after=()
            # Without -V, and from the environment found at the start: what this job has exported
            # stays in it.
            next_job=$(
                restore_environment
                exec timeout 60 qsub "${after[@]}" "$RUN_DIR/job.sh"
            ) || return 1
            next_job=${next_job%%.*}
            [ -n "$next_job" ] || return 1
            ;;
    esac
}

# The command that continues the run, as one types it.
continue_command() {
    printf 'qsub %q\n' "$RUN_DIR/job.sh"
}
