# shellcheck shell=bash
# OpenPBS, PBS Professional and Torque as the scheduler. Sites do not share a way to warn of the
# time limit, so the script itself watches the time.

# The job's login shell has reset PATH: append the PATH of the submission.
PATH=$PATH${PBS_O_PATH:+:$PBS_O_PATH}

source "${BASH_SOURCE[0]%/*}/job.bash"

readonly SCHEDULER_COMMANDS=(qstat)
readonly QUERY_INTERVAL_SECONDS=200   # between two queries of the server
readonly ANSWER_SECONDS=20 # time limit of a query

# The qsub option for each field of the server's job record, except resources.
declare -Ar QSUB_OPTION=(
    [Job_Name]=-N [Account_Name]=-A [project]=-P [Priority]=-p [Rerunable]=-r [group_list]=-W
    [Mail_Points]=-m [Mail_Users]=-M [Join_Path]=-j [Keep_Files]=-k [Output_Path]=-o
    [Error_Path]=-e
)
job_record=''        # the server's record of this job, read when it began
save_at=$((1 << 62)) # value of SECONDS at which the ranks must save; never, while unknown
query_at=0             # value of SECONDS at which the server is queried again

# read_arguments: split SLIPWAY_ARGS, quoted as in a shell, because PBS passes no arguments to a
# script. Sets arguments. Fails if a quote is not closed.
read_arguments() {
    arguments=()
    [ -n "${SLIPWAY_ARGS:-}" ] || return 0
    run_for_answer 60 split_arguments.py "$SLIPWAY_ARGS" ||
        die node-not-ready "cannot split SLIPWAY_ARGS on $head_node$step_failure"
    [ "${answer[0]:-}" = words ] ||
        die unclosed-quote "SLIPWAY_ARGS is ${SLIPWAY_ARGS@Q}: a quote is not closed"
    arguments=("${answer[@]:1}")
}

# find_allocation: read the allocation from PBS's variables, and the rest from qstat and from
# directives_*. Sets nodes, nnodes, head_node, this_node, cpus (of one node), ranks_per_node,
# world_size, gpus_per_node, cluster, scratch_id, first_port, job_record, and what plan_save sets.
# Fails if too little time remains, or if the nodes' numbers of GPUs differ
# (use_smallest_gpu_count). (Each scheduler file defines it.)
find_allocation() {
    local left counts
    # The file exists only on this node, and lists a node several times.
    mapfile -t nodes < <(awk '!seen[$0]++' "$PBS_NODEFILE")
    ((${#nodes[@]} > 0)) || die no-nodes "PBS_NODEFILE ($PBS_NODEFILE) lists no nodes"
    # With qsub -V these variables can come from the job that submitted this one.
    [[ $PBS_JOBID == *\[* ]] || unset -v PBS_ARRAY_INDEX PBS_ARRAY_ID PBS_ARRAYID
    this_node=${nodes[0]}
    reserve_spares
    job_record=$(query_job) || job_record=''
    # Query the server, because NCPUS is the number of threads if the job sets one (ompthreads).
    cpus=$(share_of_node Resource_List.ncpus "${PBS_NUM_PPN:-$directives_cpus}" <<<"$job_record")
    mapfile -t counts < <(gpus_of_nodes <<<"$job_record")
    gpus_per_node=$(requested_gpus <<<"$job_record")
    gpus_per_node=$(share_of_node Resource_List.ngpus \
        "${counts[0]:-${gpus_per_node:-$directives_gpus}}" <<<"$job_record")
    use_smallest_gpu_count "${counts[@]}"
    left=$(time_left <<<"$job_record")
    if [ -z "$job_record" ]; then
        warn scheduler-silent "qstat does not answer: the time limit is unknown until it does"
    elif [ -z "$left" ]; then
        warn no-time-limit \
            "qstat shows no valid walltime of this job, so the ranks do not save, and no next job" \
            "is submitted, before PBS ends it: submit it with -l walltime=HH:MM:SS"
    fi
    [ -z "$left" ] || ((left > save_seconds)) ||
        die time-too-short \
            "$left s of the job's time remain, but $save_seconds s are reserved for saving:" \
            "request more time"
    plan_save "$left"
    [[ $PBS_JOBID != *.* ]] || cluster=${PBS_JOBID#*.} # the server's name
    scratch_id=$job_id
    # Varies by job, from 20000 on; ephemeral ports begin at 32768.
    first_port=$((20000 + 10#$(tr --delete --complement 0-9 <<<"$job_id" | tail --bytes=5) % 10000))
    plan_ranks
}

# share_of_node NAME DEFAULT: print one node's share of a resource of the whole job, or DEFAULT.
# Reads the job record from standard input.
share_of_node() {
    local total
    total=$(job_field "$1")
    if [[ $total =~ ^(0|[1-9][0-9]*)$ ]] && ((total == 0 || total >= ${#allocation[@]})); then
        echo $((total / ${#allocation[@]}))
    else
        echo "$2"
    fi
}

# gpus_of_nodes: print how many GPUs each host of the job was given, one line per host. Reads the
# job record from standard input. OpenPBS lists each chunk's host in exec_host and its resources in
# exec_vnode, such as (node1:ncpus=8:ngpus=2)+(node2[0]:ngpus=1+node2[1]:ngpus=1). Torque lists each
# GPU in exec_gpus, such as node1-gpu/0+node1-gpu/1. (slurm.bash and pbs.bash each define it.)
gpus_of_nodes() {
    awk '
        $1 == "exec_host" { hosts = split($3, host, "+") }
        $1 == "exec_vnode" { chunks = split($3, chunk, /[)][+][(]/) }
        $1 == "exec_gpus" { gpus = split($3, gpu, "+") }
        END {
            if (!hosts || (chunks != hosts && !gpus))
                exit
            for (number = 1; number <= hosts; number++) {
                sub(/\/.*/, "", host[number])
                sum[host[number]] += 0
                if (!chunks)
                    continue
                words = split(chunk[number], word, /[:+()]/)
                for (field = 1; field <= words; field++)
                    if (word[field] ~ /^ngpus=[0-9]+$/)
                        sum[host[number]] += substr(word[field], 7)
            }
            for (number = 1; number <= gpus; number++) {
                sub(/-gpu\/.*/, "", gpu[number])
                sum[gpu[number]]++
            }
            for (name in sum)
                print sum[name]
        }
    '
}

# requested_gpus: print the number of GPUs per node in a request of Torque's form,
# nodes=2:ppn=8:gpus=2. Prints nothing if the job record, on standard input, has no such line.
requested_gpus() {
    local asked
    asked=$(job_field Resource_List.nodes)
    if [[ $asked =~ :gpus=([0-9]{1,4})(:|\+|$) ]]; then
        echo $((10#${BASH_REMATCH[1]}))
    elif [ -n "$asked" ]; then
        echo 0
    fi
}

# job_has_ended JOB: return 0 if the server reports that the job has ended or does not know it any
# more, 1 if it has not ended, 2 if the server does not answer. (Each scheduler file defines it.)
job_has_ended() {
    local said code=0 id=$1
    [[ $id != *_* ]] || id="${id/_/[}]"
    said=$(query_scheduler qstat -f "$id" 2>&1) || code=$?
    case $code in
        0) [[ ! $said =~ job_state\ =\ [RES] ]] ;;
        *) [[ $said =~ (Unknown Job|has finished) ]] || return 2 ;;
    esac
}

# nodes_out_of_service SECONDS NODE...: print those of the nodes that the server reports as down or
# unreachable, as lines NODE STATE. A node that is only offline still runs its jobs. (Overrides the
# default in healthy_nodes.bash.)
nodes_out_of_service() {
    timeout --kill-after=5 "$1" pbsnodes -a | awk -v asked="${*:2}" '
        BEGIN {
            count = split(asked, names)
            for (number = 1; number <= count; number++) {
                short = names[number]
                sub(/[.].*/, "", short)
                full[short] = names[number]
            }
        }
        /^[^[:space:]]/ {
            name = $1
            sub(/[.].*/, "", name)
        }
        $1 == "state" && name in full && /down|unknown|stale|unresolvable/ {
            print full[name], $3
        }
    '
}

# query_job: print the server's record of this job, with each field on one line: qstat breaks long
# ones.
query_job() {
    timeout --kill-after=5 "$ANSWER_SECONDS" qstat -f "$PBS_JOBID" 2>/dev/null |
        sed --expression=':more' --expression='$!{N;b more}' --expression='s/\n\t//g'
}

# job_field NAME: print a field of the job record on standard input. (slurm.bash and pbs.bash each
# define it.)
job_field() {
    sed --quiet "s/^ *$1 = //p"
}

# to_seconds DURATION: convert [[[DAYS:]HOURS:]MINUTES:]SECONDS to seconds. Prints nothing for
# another format.
to_seconds() {
    local sum=0 part parts size=(1 60 3600 86400)
    [[ $1 =~ ^([0-9]{1,9}:){0,3}[0-9]{1,9}$ ]] || return 0
    IFS=: read -r -a parts <<<"$1"
    for part in "${!parts[@]}"; do
        sum=$((sum + 10#${parts[part]} * size[${#parts[@]} - 1 - part]))
    done
    echo "$sum"
}

# time_left: print the job's remaining time in seconds, from the job record on standard input.
# Prints nothing if the record has no limit. A batch job began with this script; the server's times
# are not used for it, as they can be of an earlier run of the job. An interactive job began before
# this script: at the start time that the server reports, or by its used walltime, whichever is
# earlier.
time_left() {
    local record limit past=$SECONDS run
    record=$(cat)
    limit=$(to_seconds "$(job_field Resource_List.walltime <<<"$record")")
    [ -n "$limit" ] || return 0
    if [ -n "${interactive:-}" ]; then
        run=$(to_seconds "$(job_field resources_used.walltime <<<"$record")")
        ((${run:-0} <= past)) || past=$run
        run=$(seconds_since "$(job_field '\(stime\|start_time\)' <<<"$record")")
        ((${run:-0} <= past)) || past=$run
    fi
    echo $((limit - past))
}

# seconds_since DATE: print the seconds since DATE, in the format of ctime(3). Prints nothing for
# another format.
seconds_since() {
    local began ctime='^[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{4}$'
    [[ $1 =~ $ctime ]] && began=$(date --date="$1" +%s 2>/dev/null) || return 0
    echo $(($(date +%s) - began))
}

# watch_time_limit: start a process that sends this script SIGUSR1 when save_seconds remain. It ends
# with the script. Sets watcher, the descriptor by which it detects that. (Each scheduler file
# defines it.)
watch_time_limit() {
    exec {watcher}> >(
        trap '' TERM USR1 INT HUP
        # `read` returns at end of file when the script has ended.
        until time_is_nearly_up; do
            read -r -t "$pause" || [ $? -gt 128 ] || exit 0
        done
        kill -USR1 $$
    )
}

# plan_save LEFT: compute when the ranks must save: LEFT seconds from now, minus save_seconds and
# the time of a query. If LEFT is empty because the server did not answer, the previous plan stays.
# Sets save_at and query_at.
plan_save() {
    [ -z "$1" ] || save_at=$((SECONDS + $1 - save_seconds - ANSWER_SECONDS))
    query_at=$((SECONDS + QUERY_INTERVAL_SECONDS))
}

# time_is_nearly_up: return 0 if the ranks must save now. An administrator may change the limit, so
# this queries the server every QUERY_INTERVAL_SECONDS, and once more before it returns 0. Sets
# pause, the seconds until the next check.
time_is_nearly_up() {
    if ((SECONDS >= query_at || SECONDS >= save_at)); then
        plan_save "$(query_job | time_left)"
    fi
    pause=$(((save_at < query_at ? save_at : query_at) - SECONDS))
    ((pause > 0)) || pause=1 # `read -t 0` would not wait
    ((SECONDS >= save_at))
}

# handle_stop_signal: request a stop by the file STOP. qdel signals this script, but no process that
# a remote shell has started. (Each scheduler file defines it.)
handle_stop_signal() {
    request_stop user
}

# options_of_job: find the qsub options with which the next job gets the same resources and
# attributes as this one, from the job record. They override the directives in job.sh. Sets options.
# Fails, and logs why, if the server has never shown a record: a job with other resources would not
# be a continuation.
options_of_job() {
    local line name value
    [[ $job_record == *' queue = '* ]] || job_record=$(query_job) || :
    options=(-q "$(queue_of_submission)")
    if [ -z "${options[1]}" ]; then
        warn no-requeue "qstat does not show this job's resources: the next job is not submitted"
        return 1
    fi
    while IFS= read -r line; do
        [[ $line =~ ^\ +([A-Za-z0-9_.-]+)\ =\ (.+)$ ]] || continue
        name=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]}
        case $name in
            Resource_List.*)
                name=${name#*.}
                [[ $value != *,* ]] || value=\"$value\"
                ! is_requested "$name" || options+=(-l "$name=$value")
                continue
                ;;
            Rerunable)
                value=${value/True/y}
                value=${value/False/n}
                ;;
            group_list) value=group_list=$value ;;
            project) [ "$value" != _pbs_project_default ] || continue ;;
            Priority) [ "$value" != 0 ] || continue ;;
            Output_Path | Error_Path) value=$(log_path "$value") ;;
        esac
        [ -z "${QSUB_OPTION[$name]:-}" ] || [ -z "$value" ] ||
            options+=("${QSUB_OPTION[$name]}" "$value")
    done <<<"$job_record"
}

# queue_of_submission: print the queue for the next job: PBS_O_QUEUE if it is a routing queue,
# because the queues to which it routes may not accept jobs from users. Otherwise the job's current
# queue, as the job may have been moved there.
queue_of_submission() {
    local queue kind=''
    queue=$(job_field queue <<<"$job_record")
    if [ -n "$queue" ] && [ "${PBS_O_QUEUE:-$queue}" != "$queue" ]; then
        kind=$(timeout --kill-after=5 "$ANSWER_SECONDS" qstat -Q -f "$PBS_O_QUEUE" 2>/dev/null |
            job_field queue_type) || :
    fi
    [ "$kind" != Route ] || queue=$PBS_O_QUEUE
    echo "$queue"
}

# is_requested RESOURCE: return 0 if the job was submitted with this resource. The record also
# contains sums over all nodes and resources that the site adds, which qsub may not accept.
is_requested() {
    local said
    case $1 in
        nodes | walltime) return 0 ;;
        neednodes | nodect) return 1 ;;
        select | place) # OpenPBS derives them from `nodes`, and does not accept both
            [[ $job_record != *' Resource_List.nodes = '* ]]
            return
            ;;
    esac
    said=$(job_field '\(Submit_arguments\|submit_args\)' <<<"$job_record")
    [[ $said =~ (-l\ *|,)[\'\"]?$1= ]]
}

# log_path HOST:PATH: print the path of the log as it was requested: a folder or a file. Prints
# nothing if it is PBS's default name, which contains this job's number.
log_path() {
    local path=$1 name=${1##*/} number=${PBS_JOBID%%[!0-9]*}
    case $name in
        "$PBS_JOBID".OU | "$PBS_JOBID".ER) path=${1%/*}/ ;;
        *'^array_index^'* | *.[oe]"$number" | *.[oe]"$number"[!0-9]*) path='' ;;
    esac
    echo "$path"
}

# resubmit METHOD: requeue this job (requeue) or submit the next one (chain). Sets next_job. Fails
# if PBS refuses, and in an interactive job. (Each scheduler file defines it.)
resubmit() {
    if [ -n "${interactive:-}" ]; then
        warn no-requeue "an interactive job cannot be requeued"
        return 1
    fi
    local after=(-W "depend=afterany:$PBS_JOBID")
    case $1 in
        requeue)
            timeout 60 qrerun "$PBS_JOBID" || return 1
            next_job=$job_id
            ;;
        chain)
            # In OpenPBS a job cannot depend on an array task. The next job then waits itself
            # (refuse_concurrent_run).
            [[ $PBS_JOBID != *\[* ]] || after=()
            local options
            options_of_job || return 1
            # Without -V, and with the environment of the start: the next job must not get the
            # variables that this job has exported.
            next_job=$(
                restore_environment
                exec timeout 60 qsub "${after[@]}" "${options[@]}" "$RUN_DIR/job.sh"
            ) || return 1
            next_job=${next_job%%.*}
            [ -n "$next_job" ] || return 1
            ;;
    esac
}

# continue_command: print the shell command that continues the run. (Each scheduler file defines
# it.)
continue_command() {
    printf 'qsub %q\n' "$RUN_DIR/job.sh"
}
