# shellcheck shell=bash
# The attempts in a run folder: begin the next one, and find out whether another job or an earlier
# attempt still runs there.

cluster='' # this job's cluster; empty if the scheduler has only one

# begin_attempt NUMBER: make the attempt's folder, with this number or the next free one. It
# contains `job`, the job and its cluster, and `process`, this script's process; both exist as soon
# as the folder does. Sets attempt and log_dir.
begin_attempt() {
    local new=$RUN_DIR/logs/.new.$HOSTNAME.$$
    attempt=$1
    mkdir --parents -- "$new" &&
        { echo "$scheduler $job_id${cluster:+ $cluster}" >"$new/job"; } 2>/dev/null &&
        { echo "$HOSTNAME $(process_of $$)" >"$new/process"; } 2>/dev/null ||
            die cannot-write "cannot write $RUN_DIR/logs: is the disk full?"
    # Another job may begin in the same folder at the same time: each gets its own number.
    while [ -e "$RUN_DIR/logs/$attempt" ] ||
        ! mv --no-target-directory -- "$new" "$RUN_DIR/logs/$attempt" 2>/dev/null; do
        [ -e "$RUN_DIR/logs/$attempt" ] ||
            die cannot-write "cannot write $RUN_DIR/logs: is the disk full?"
        attempt=$((attempt + 1))
    done
    log_dir=$RUN_DIR/logs/$attempt
}

# process_of PID: print the process number and its start time, in clock ticks since the machine
# started. Prints nothing if there is no such process or it is a zombie.
process_of() {
    local line='' fields
    { read -r -d '' line <"/proc/$1/stat"; } 2>/dev/null || :
    read -r -a fields <<<"${line##*) }" # after the name, which may contain blanks
    [[ ${fields[0]:-Z} == [ZX] ]] || echo "$1 ${fields[19]}"
}

# log_guard_kill NUMBER: warn if guard.sh ended that attempt. Its log is separate from the job's
# log.
log_guard_kill() {
    local log=$RUN_DIR/logs/$1/guard.log
    [ ! -s "$log" ] || warn node-lost "$(head --lines=1 -- "$log")"
}

# refuse_concurrent_run: fail if the job or process of an earlier attempt still runs, because two
# trainings would write to one folder. Waits up to 2 minutes for the end of a job that has trained
# (the next rung of a sweep may begin while it cleans up) or that this one continues (PBS does not
# let a job depend on an array task). Also fails if it is impossible to find out. If the scheduler
# does not answer, warns and relies on the trainer's lock.
refuse_concurrent_run() {
    local folder number code runs words limit numbers=() seen=$'\n' silent='' unknown=()
    local its_scheduler its_job its_cluster its_host its_process
    for folder in "$RUN_DIR"/logs/*/; do
        number=${folder%/}
        number=${number##*/}
        [[ $number =~ ^[1-9][0-9]{0,8}$ ]] && ((number < attempt)) || continue
        numbers[number]=$number # sorted by number
    done
    # The newest attempt first: of all attempts of one script, it shows whether the script has
    # trained.
    while ((${#numbers[@]} > 0)); do
        number=${numbers[-1]}
        unset -v 'numbers[-1]'
        read_attempt_owner "$number"
        words="$its_scheduler $its_job $its_cluster $its_host $its_process"
        [[ $seen != *$'\n'"$words"$'\n'* ]] || continue
        seen+=$words$'\n'
        limit=0
        if [ -e "$RUN_DIR/verdict.$number" ] || [ -e "$RUN_DIR/logs/$number/code" ] ||
            [ "$(count_requeues)" != 0 ]; then
            limit=$((SECONDS + 120))
        fi
        runs=''
        while true; do
            code=0
            attempt_has_ended "$number" || code=$?
            # Unknown now, but it ran when the scheduler last answered: it counts as running.
            [[ $code$runs != [23]1 ]] || code=1 silent=''
            [ "$code" = 1 ] || break
            runs=1
            ((SECONDS < limit)) || refuse_running_attempt "$number"
            sleep 2
        done
        [ "$code" != 2 ] || unknown+=("$its_job")
        [ "$code" != 3 ] || refuse_unverifiable_attempt "$number"
    done
    [ ${#unknown[@]} = 0 ] || [ -n "${log_dir:-}" ] || # log_dir is set: the warning was logged
        warn folder-in-use \
            "the scheduler does not answer: job $(join_by ', ' "${unknown[@]}") may still run in" \
            "$RUN_DIR. If it does, stop one of the two jobs"
}

# refuse_unverifiable_attempt NUMBER: fail because that attempt may still run on a machine or
# cluster that this job cannot query.
refuse_unverifiable_attempt() {
    read_attempt_owner "$1"
    [ -z "${log_dir:-}" ] || rm -rf -- "${log_dir:?}"
    die folder-in-use \
        "job $its_job${its_cluster:+ of $its_cluster} began attempt $1 in $RUN_DIR on" \
        "${its_host:-a node} and may still run: it has recorded no end, and this job cannot query" \
        "it. Stop it; or, if it has ended: echo ended >>${RUN_DIR@Q}/logs/$1/process"
}

# refuse_running_attempt NUMBER: fail because that attempt still runs. Removes this attempt's
# folder, which frees its number.
refuse_running_attempt() {
    local left
    read_attempt_owner "$1"
    left=$(processes_left "$1" | xargs)
    [ -z "${log_dir:-}" ] || rm -rf -- "${log_dir:?}"
    die folder-in-use \
        "job $its_job runs in $RUN_DIR: wait for its end, or stop it" \
        ${left:+"(its processes on $HOSTNAME: $left)"}
}

# read_attempt_owner NUMBER: read which job and process began that attempt, as begin_attempt has
# recorded it. Sets its_scheduler, its_job, its_cluster, its_host and its_process; each is empty if
# not recorded.
read_attempt_owner() {
    its_scheduler='' its_job='' its_cluster='' its_host='' its_process=''
    read -r its_scheduler its_job its_cluster 2>/dev/null <"$RUN_DIR/logs/$1/job" || :
    read -r its_host its_process 2>/dev/null <"$RUN_DIR/logs/$1/process" || :
}

# is_own_job: return 0 if read_attempt_owner has found this same job.
is_own_job() {
    [ "$its_job" = "$job_id" ] && ! is_foreign_job
}

# is_foreign_job: return 0 if read_attempt_owner has found a job of another scheduler or cluster.
is_foreign_job() {
    [ "$its_scheduler" != "$scheduler" ] ||
        { [ -n "$its_cluster" ] && [ -n "$cluster" ] && [ "$its_cluster" != "$cluster" ]; }
}

# foreign_job_has_ended JOB CLUSTER: return 0 if a job on another cluster of this scheduler has
# ended, 1 if it runs, 2 if unknown. Returns 2 by default. (slurm.bash overrides this default.)
foreign_job_has_ended() {
    return 2
}

# attempt_has_ended NUMBER: return 0 if the script of that attempt has ended or is this very script.
# Returns 1 if it runs; 2 if the scheduler does not answer (sets `silent`, and does not query it
# again); 3 if it ran on a machine or cluster that cannot be queried.
#
# For another job, the scheduler decides, and if it does not answer, the end that the job has
# recorded. For this same job, an earlier start is over if the scheduler has requeued the job. In an
# interactive allocation, a user may start several scripts, which their processes distinguish.
attempt_has_ended() {
    local its_scheduler its_job its_cluster its_host its_process code=0
    read_attempt_owner "$1"
    [ -n "$its_job" ] || return 0
    if is_foreign_job; then
        ! has_recorded_end "$1" || return 0
        [ "$its_scheduler" = "$scheduler" ] || return 3
        foreign_job_has_ended "$its_job" "$its_cluster" || code=$?
        return $((code == 2 ? 3 : code))
    elif [ "$its_job" != "$job_id" ] &&
        { [ -z "$its_process" ] || [ ${#SCHEDULER_COMMANDS[@]} != 0 ]; }; then
        [ -n "${silent:-}" ] || job_has_ended "$its_job" || code=$?
        [ "$code" != 2 ] || silent=1
        [ -n "${silent:-}" ] || return "$code"
        has_recorded_end "$1" || return 2
    elif [ -z "$its_process" ]; then
        return 0
    elif [ "$its_host" = "$HOSTNAME" ]; then
        [ "$its_process" = "$(process_of $$)" ] ||
            { [ "$its_process" != "$(process_of "${its_process% *}")" ] &&
                [ -z "$(processes_left "$1")" ]; }
    else
        scheduler_ends_job || has_recorded_end "$1" || return 3
    fi
}

# has_recorded_end NUMBER: return 0 if that attempt's end is recorded: by its script
# (record_script_end), by a user, or by a verdict of its ranks after which they are not restarted
# (attempt_has_died).
has_recorded_end() {
    local state='' step='' reason='' code=''
    ! grep --quiet --no-messages '^ended' "$RUN_DIR/logs/$1/process" || return 0
    read -r state step reason 2>/dev/null <"$RUN_DIR/verdict.$1" || :
    read -r code 2>/dev/null <"$RUN_DIR/logs/$1/code" || :
    case "$state $reason" in
        "stopped launcher") return 1 ;;
        "stopped signal") ! launch_crashed ;;
        done\ * | stopped\ * | out-of-time\ * | failed\ *) ;;
        *) return 1 ;;
    esac
}

# record_script_end CODE: record that this script has ended with CODE, for has_recorded_end.
record_script_end() {
    [ -f "${log_dir:-}/process" ] || return 0
    echo "ended $1" 2>/dev/null >>"$log_dir/process"
}

# scheduler_ends_job: return 0 if the scheduler ends all processes of this job before it starts the
# job again.
scheduler_ends_job() {
    [ ${#SCHEDULER_COMMANDS[@]} != 0 ] && [ -z "${interactive:-}" ]
}

# processes_left NUMBER: print the processes on this node of a launch of that attempt that has no
# exit code yet, although its script may have been killed. Reads what read_attempt_owner sets.
# Prints nothing if the scheduler ends a job's processes: terminate_earlier_ranks handles this job's
# own.
processes_left() {
    [ ! -e "$RUN_DIR/logs/$1/code" ] && [ -n "$its_process" ] && [ "$its_host" = "$HOSTNAME" ] &&
        ! scheduler_ends_job || return 0
    sh "$lib/find_ranks.sh" "$its_job.*.${its_process% *}.*" || :
}

# last_attempt: print the number of the last attempt that has a folder or a verdict, or 0.
last_attempt() {
    local left number last=0
    for left in "$RUN_DIR"/logs/*/ "$RUN_DIR"/verdict.*; do
        number=${left%/}
        number=${number##*[/.]}
        [[ $number =~ ^[1-9][0-9]{0,8}$ ]] || continue
        ((number <= last)) || last=$number
    done
    echo "$last"
}
