# shellcheck shell=bash
# What OpenPBS, PBS Professional and Torque call things. Nothing warns of the time limit in a way
# that all sites share, so the script itself looks at the clock.

# The login shell of a job has reset PATH: what was on it at submission comes behind.
PATH=$PATH${PBS_O_PATH:+:$PBS_O_PATH}

source "${BASH_SOURCE[0]%/*}/job.bash"

readonly SCHEDULER_COMMANDS=(qstat)
readonly ASK_SECONDS=200   # between two questions to the server
readonly ANSWER_SECONDS=20 # that it may take for an answer

# What its record of a job is called as an option of qsub, besides resources.
declare -Ar QSUB_OPTION=(
    [Job_Name]=-N [Account_Name]=-A [project]=-P [Priority]=-p [Rerunable]=-r [group_list]=-W
    [Mail_Points]=-m [Mail_Users]=-M [Join_Path]=-j [Keep_Files]=-k [Output_Path]=-o
    [Error_Path]=-e
)
job_record=''        # of this job, as it began
save_at=$((1 << 62)) # of SECONDS, when the ranks have to save; as long as nobody knows, never
ask_at=0             # of SECONDS, when the server is asked again

# read_arguments: PBS hands no arguments to a script, so they come in SLIPWAY_ARGS, quoted as in a
# shell. Sets arguments.
read_arguments() {
    arguments=()
    [ -n "${SLIPWAY_ARGS:-}" ] || return 0
    run_for_answer 60 split_arguments.py "$SLIPWAY_ARGS" ||
        die node-not-ready "SLIPWAY_ARGS could not be split on $head_node$step_failure"
    [ "${answer[0]:-}" = words ] ||
        die unclosed-quote "SLIPWAY_ARGS is ${SLIPWAY_ARGS@Q}, in which a quote is not closed"
    arguments=("${answer[@]:1}")
}

# find_allocation: read the allocation from PBS's variables, and what those do not say from qstat
# and from directives_*. Fails if numbers of GPUs differ (use_smallest_gpu_count). Sets nodes,
# nnodes, head_node, cpus (of one node), ranks_per_node, world_size, gpus_per_node, cluster,
# first_port, job_record, and what plan_save sets.
find_allocation() {
    local left counts
    # A file of this node only, in which a node stands several times.
    mapfile -t nodes < <(awk '!seen[$0]++' "$PBS_NODEFILE")
    ((${#nodes[@]} > 0)) || die no-nodes "PBS_NODEFILE ($PBS_NODEFILE) names no nodes"
    # Of the job from inside whose this one was submitted by qsub -V.
    [[ $PBS_JOBID == *\[* ]] || unset -v PBS_ARRAY_INDEX PBS_ARRAY_ID PBS_ARRAYID
    this_node=${nodes[0]}
    reserve_spares
    job_record=$(query_job) || job_record=''
    # NCPUS would be the number of threads where the job names one (ompthreads), so the server is
    # asked.
    cpus=$(share_of_node Resource_List.ncpus "${PBS_NUM_PPN:-$directives_cpus}" <<<"$job_record")
    mapfile -t counts < <(gpus_of_nodes <<<"$job_record")
    gpus_per_node=$(requested_gpus <<<"$job_record")
    gpus_per_node=$(share_of_node Resource_List.ngpus \
        "${counts[0]:-${gpus_per_node:-$directives_gpus}}" <<<"$job_record")
    use_smallest_gpu_count "${counts[@]}"
    left=$(time_left <<<"$job_record")
    if [ -z "$job_record" ]; then
        warn scheduler-silent "qstat does not answer: as long as that is so, no time limit is seen"
    elif [ -z "$left" ]; then
        warn no-time-limit \
            "qstat shows no walltime of this job that can be read, so nothing is saved, and no" \
            "next job submitted, before PBS ends it: submit it with -l walltime=HH:MM:SS"
    fi
    [ -z "$left" ] || ((left > save_seconds)) ||
        die time-too-short \
            "$left s are left of the job's time, and $save_seconds s are kept for saving: give it" \
            "more"
    plan_save "$left"
    [[ $PBS_JOBID != *.* ]] || cluster=${PBS_JOBID#*.} # the server
    scratch_id=$job_id
    # from 20000 on, as clients get 32768 and up; it differs from job to job
    first_port=$((20000 + 10#$(tr --delete --complement 0-9 <<<"$job_id" | tail --bytes=5) % 10000))
    plan_ranks
}

# set_nodes NODE...: those on which steps run from now on, in the order of the allocation. Sets
# nodes, nnodes and head_node.
set_nodes() {
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

# gpus_of_nodes: how many each host of the job has been given, a line each, from the server's answer
# on standard input. OpenPBS names for each chunk a host in exec_host and what it got there in
# exec_vnode, (node1:ncpus=8:ngpus=2)+(node2[0]:ngpus=1+node2[1]:ngpus=1); Torque a word for each
# GPU in exec_gpus, node1-gpu/0+node1-gpu/1.
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

# requested_gpus: of each node, from the server's answer on standard input, as jobs of Torque ask,
# nodes=2:ppn=8:gpus=2; nothing where that has no such line.
requested_gpus() {
    local asked
    asked=$(job_field Resource_List.nodes)
    if [[ $asked =~ :gpus=([0-9]{1,4})(:|\+|$) ]]; then
        echo $((10#${BASH_REMATCH[1]}))
    elif [ -n "$asked" ]; then
        echo 0
    fi
}

# job_has_ended JOB: whether the server says so, or has forgotten it; 2: it does not answer.
job_has_ended() {
    local said code=0 id=$1
    [[ $id != *_* ]] || id="${id/_/[}]"
    said=$(query_scheduler qstat -f "$id" 2>&1) || code=$?
    case $code in
        0) [[ ! $said =~ job_state\ =\ [RES] ]] ;;
        *) [[ $said =~ (Unknown Job|has finished) ]] || return 2 ;;
    esac
}

# nodes_out_of_service SECONDS NODE...: print those that the server says are down or not reached.
# One that is only offline still runs its jobs.
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

# query_job: what the server says of this job, each field on one line: qstat breaks long ones.
query_job() {
    timeout --kill-after=5 "$ANSWER_SECONDS" qstat -f "$PBS_JOBID" 2>/dev/null |
        sed --expression=':more' --expression='$!{N;b more}' --expression='s/\n\t//g'
}

# job_field NAME: of that, from standard input.
job_field() {
    sed --quiet "s/^ *$1 = //p"
}

# to_seconds DURATION: [[[DAYS:]HOURS:]MINUTES:]SECONDS; nothing for anything else.
to_seconds() {
    local sum=0 part parts size=(1 60 3600 86400)
    [[ $1 =~ ^([0-9]{1,9}:){0,3}[0-9]{1,9}$ ]] || return 0
    IFS=: read -r -a parts <<<"$1"
    for part in "${!parts[@]}"; do
        sum=$((sum + 10#${parts[part]} * size[${#parts[@]} - 1 - part]))
    done
    echo "$sum"
}

# time_left: of the job, in seconds, from the server's answer on standard input; nothing where that
# names no limit. A job that is no batch job began before this script: at what the server says, or
# as much earlier as it has counted, whichever is more. What it says of a batch job can be of an
# earlier run of that.
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

# seconds_since DATE: as ctime(3) writes one; nothing for anything else.
seconds_since() {
    local began ctime='^[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{4}$'
    [[ $1 =~ $ctime ]] && began=$(date --date="$1" +%s 2>/dev/null) || return 0
    echo $(($(date +%s) - began))
}

# watch_time_limit: send this script SIGUSR1 when no more than save_seconds are left. It ends with
# the script. Sets watcher, the descriptor by which it knows.
watch_time_limit() {
    exec {watcher}> >(
        trap '' TERM USR1 INT HUP
        # read: end of file is the end of the script
        until time_is_nearly_up; do
            read -r -t "$pause" || [ $? -gt 128 ] || exit 0
        done
        kill -USR1 $$
    )
}

# plan_save LEFT: of a job with so much time left, of which save_seconds are kept, and what an
# answer of the server may take; without one (the server was silent) what has been planned holds.
# Sets save_at and ask_at.
plan_save() {
    [ -z "$1" ] || save_at=$((SECONDS + $1 - save_seconds - ANSWER_SECONDS))
    ask_at=$((SECONDS + ASK_SECONDS))
}

# time_is_nearly_up: an administrator may change the limit, so the server is asked every
# ASK_SECONDS, and once more before the answer is yes. Sets pause, in seconds, which is to pass
# before the next look.
time_is_nearly_up() {
    if ((SECONDS >= ask_at || SECONDS >= save_at)); then
        plan_save "$(query_job | time_left)"
    fi
    pause=$(((save_at < ask_at ? save_at : ask_at) - SECONDS))
    ((pause > 0)) || pause=1 # `read -t 0` does not wait
    ((SECONDS >= save_at))
}

# qdel signals this script, but nothing that a remote shell started: the ranks learn it from STOP.
handle_stop_signal() {
    request_stop user
}

# options_of_job: words for qsub by which the next job gets what this one was given, whoever named
# it: by its record. Options of the command line win over those in job.sh. Sets options. Fails, and
# says it, if the server has never shown a record: other resources are no continuation.
options_of_job() {
    local line name value
    [[ $job_record == *' queue = '* ]] || job_record=$(query_job) || :
    options=(-q "$(queue_of_submission)")
    if [ -z "${options[1]}" ]; then
        warn no-requeue "qstat does not say what this job was given: no other one is submitted"
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

# queue_of_submission: PBS_O_QUEUE where that is one from which jobs are routed to others, which may
# take no job from users. Else the job's: it may have been moved there.
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

# is_requested RESOURCE: whether the job was submitted with it. The record has others besides: sums
# over all nodes, and what the site adds, which qsub need not take.
is_requested() {
    local said
    case $1 in
        nodes | walltime) return 0 ;;
        neednodes | nodect) return 1 ;;
        select | place) # OpenPBS makes them of `nodes`, and takes no two of these
            [[ $job_record != *' Resource_List.nodes = '* ]]
            return
            ;;
    esac
    said=$(job_field '\(Submit_arguments\|submit_args\)' <<<"$job_record")
    [[ $said =~ (-l\ *|,)[\'\"]?$1= ]]
}

# log_path HOST:PATH: as it was asked for: a folder, or a file; nothing where it is PBS's own name
# for the log, which has the number of this job.
log_path() {
    local path=$1 name=${1##*/} number=${PBS_JOBID%%[!0-9]*}
    case $name in
        "$PBS_JOBID".OU | "$PBS_JOBID".ER) path=${1%/*}/ ;;
        *'^array_index^'* | *.[oe]"$number" | *.[oe]"$number"[!0-9]*) path='' ;;
    esac
    echo "$path"
}

# resubmit METHOD: requeue puts this very job back into the queue, chain submits the next one. Sets
# next_job.
resubmit() {
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
            # (refuse_concurrent_run).
            [[ $PBS_JOBID != *\[* ]] || after=()
            local options
            options_of_job || return 1
            # Without -V, and from the environment found at the start: what this job has exported
            # stays in it.
            next_job=$(
                restore_environment
                exec timeout 60 qsub "${after[@]}" "${options[@]}" "$RUN_DIR/job.sh"
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
