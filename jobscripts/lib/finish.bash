# shellcheck shell=bash
# The end of the job: decide from the cause or the verdict of the last attempt how the job ends, and
# requeue or clean up.

# finish METHOD: log what the attempt has used and end the job, according to the attempt's cause or
# else its verdict, because launchers hide exit codes. METHOD is requeue, chain or none. A run that
# is out of time and has made progress is continued by METHOD; so is a run for which requeue_reason
# is set. If a user script leaves neither a cause nor a verdict, its exit code decides. The
# exception is 0 after slipway.Session has begun, because a session that succeeds leaves a verdict.
finish() {
    report_usage || :
    if attempt_has_cause; then
        log_reason "$cause; exit code $cause_code; see $log_dir/stderr.log"
        exit "$cause_code"
    fi
    if [ "$cancelled" = 1 ] && [ -z "$SLIPWAY_SCRIPT" ] && [ -n "${launch_pid:-}" ]; then
        wait_for_verdict "${verdict_seconds:-0}"
    fi
    read_verdict
    if [ "$cancelled" = 1 ] && [ -z "$state" ] && attempt_saved_nothing && signal_is_stray; then
        cancelled=0
        requeue_after_stray_sigterm
        cancelled=1
    fi
    [ -z "$SLIPWAY_SCRIPT" ] || [ "$SLIPWAY_ADAPT" = 0 ] || check_process_groups
    if [ "$1" != none ] && [ -n "${requeue_reason:-}" ] && attempt_has_died; then
        continue_run "$1" "$requeue_reason"
    fi
    if [ -z "$state" ] && [ -n "$SLIPWAY_SCRIPT" ] &&
        { [ "$code" != 0 ] || ! attempt_has_open_session; }; then
        [ "$code" = 0 ] || ! run_has_session ||
            log "exit code $code; to continue: $(continue_command)"
        exit "$code"
    fi
    if [ -z "$state" ] && [ "$cancelled" = 1 ]; then
        error stopped-early \
            "a signal ended the job before the ranks had saved; to continue: $(continue_command)"
        exit "$EXIT_STOPPED"
    fi
    case $state in
        done) exit 0 ;;
        out-of-time)
            if [ "$1" != none ] && [ "$cancelled" = 0 ]; then
                continue_after_progress "$1"
            fi
            ;;&
        out-of-time | stopped)
            log "stopped at step $step ($reason); to continue: $(continue_command)"
            exit "$EXIT_STOPPED"
            ;;
        failed) log_reason "$reason" ;;
        *)
            log_reason "$(last_log_line); exit code $code; see $log_dir/stderr.log; to continue:" \
                "$(continue_command)"
            ;;
    esac
    ((code > 0 && code < 256)) || code=1
    exit "$code"
}

# continue_after_progress METHOD: continue a run that is out of time. Returns if the attempt has
# saved no step, because the next one would not either.
continue_after_progress() {
    if attempt_made_progress; then
        continue_run "$1" "out of time at step $step"
    else
        warn no-requeue "attempt $attempt has saved no step: not continued automatically"
    fi
}

# log_reason REASON...: log an error from a cause or verdict, which has the form SLUG: SENTENCE, or
# from a line of the trainer.
log_reason() {
    set -- "$*"
    if [[ $1 =~ ^trainer:\ (\[rank\ [0-9]+\]\ )?error\[([a-z0-9-]+)\]:\ (.*)$ ]]; then
        error "${BASH_REMATCH[2]}" "${BASH_REMATCH[1]}${BASH_REMATCH[3]}"
    elif [[ $1 != trainer:* && $1 =~ ^([a-z][a-z0-9-]*):\ (.*)$ ]]; then
        error "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
    else
        error rank-failed "$1"
    fi
}

# attempt_saved_nothing: return 0 if the last attempt has saved no step. Returns 1 for a user script
# without slipway.Session, as its progress is unknown.
attempt_saved_nothing() {
    [ -z "$SLIPWAY_SCRIPT" ] || run_has_session || return 1
    ! attempt_made_progress
}

# read_verdict: read the attempt's verdict. Sets state, step and reason, which are empty without a
# verdict.
read_verdict() {
    state='' step='' reason=''
    [ ! -f "$RUN_DIR/verdict.$attempt" ] ||
        read -r state step reason <"$RUN_DIR/verdict.$attempt" || :
}

# attempt_has_cause: return 0 if the attempt failed before training for a reason that a rank has
# written to logs/N/cause, as one line: CODE SLUG: SENTENCE. Sets cause_code, 2 or 78, and cause,
# the rest of the line.
attempt_has_cause() {
    local LC_ALL=C line=''
    [ -f "$log_dir/cause" ] || return 1
    IFS= read -r -n 4096 line 2>/dev/null <"$log_dir/cause" || :
    [[ $line =~ ^(2|78)\ ([^[:cntrl:]]+)$ ]] || return 1
    cause_code=${BASH_REMATCH[1]} cause=${BASH_REMATCH[2]}
}

# check_process_groups: warn if the ranks of a user script did not form one process group.
# sitecustomize.py writes the size of each group to the log folder.
check_process_groups() {
    local file size groups=()
    for file in "$log_dir"/world.*; do
        [ -f "$file" ] && read -r size <"$file" && [[ $size =~ ^[0-9]{1,6}$ ]] || continue
        groups+=("$size")
    done
    if [ ${#groups[@]} = 0 ] && [ "$code" = 0 ] && [ "$world_size" != 1 ]; then
        warn ranks-not-connected \
            "no rank has joined a group of torch.distributed or Horovod: the script ran" \
            "$world_size times independently"
    elif [ ${#groups[@]} != 0 ] && ! { [ ${#groups[@]} = 1 ] && ((groups[0] >= world_size)); }; then
        warn ranks-not-connected \
            "$world_size ranks formed ${#groups[@]} group(s) instead of one, with" \
            "$(join_by ', ' "${groups[@]:0:8}")${groups[8]:+, ...} rank(s): each group" \
            "trained independently"
    fi
}

# wait_for_verdict SECONDS: wait up to SECONDS for the attempt's verdict, because ranks can outlive
# their launcher. Rank 0 writes it: if that rank runs on this node, the wait ends when no process of
# the launch runs here any more.
wait_for_verdict() {
    local deadline=$((SECONDS + $1))
    until [ -f "$RUN_DIR/verdict.$attempt" ] || ((SECONDS >= deadline)); do
        [ "${this_node:-}" != "$head_node" ] || launch_runs || return 0
        sleep 0.2
    done
}

# launch_runs: return 0 if a process of the last launch runs on this node.
launch_runs() {
    sh "$lib/find_ranks.sh" "${launch_id:-}" >/dev/null
}

# continue_run METHOD WHY: continue the run in a next job and end this one. Returns if that is not
# allowed or the scheduler refuses it.
continue_run() {
    local count
    count=$(count_requeues)
    if [ "$count" -ge "$SLIPWAY_MAX_REQUEUES" ]; then
        warn no-requeue "the job was requeued $count times, the limit of SLIPWAY_MAX_REQUEUES"
        return 0
    fi
    cleanup_seconds=20 # the time limit is near; the next attempt removes the remaining files
    remove_scratch
    # Ignore signals from here on: the requeue itself sends SIGTERM to this script.
    trap '' TERM USR1 INT HUP
    [ "$cancelled" = 0 ] || return 0
    if ! echo "$((count + 1)) $job_id" >>"$RUN_DIR/requeues"; then
        warn no-requeue "$2, and $RUN_DIR/requeues cannot be written: is the disk full?"
        return 0
    fi
    warn requeued "$2; continuing by $1, number $((count + 1)) of at most $SLIPWAY_MAX_REQUEUES"
    next_job=''
    if ! resubmit "$1"; then
        warn no-requeue "the scheduler did not continue the run"
        return 0
    fi
    [ "$next_job" = "$job_id" ] || echo "$((count + 1)) $next_job" >>"$RUN_DIR/requeues" || :
    log "continued by job $next_job"
    exit "$EXIT_STOPPED"
}

# count_requeues: print how often this job was continued automatically, according to
# RUN_DIR/requeues, whose lines are COUNT JOB. A job that was submitted by hand starts at 0.
count_requeues() {
    local count job last=0
    if [ -f "$RUN_DIR/requeues" ]; then
        while read -r count job; do
            [ "$job" != "$job_id" ] || ! [[ $count =~ ^[1-9][0-9]{0,5}$ ]] || last=$count
        done <"$RUN_DIR/requeues"
    fi
    echo "$last"
}

# last_log_line: print the trainer's last line in the log of an attempt without a verdict, or a
# default text.
last_log_line() {
    local line
    line=$(grep '^trainer: ' "$log_dir/stderr.log" 2>/dev/null | tail --lines=1) || :
    echo "${line:-a rank, the launcher or a node ended without a verdict}"
}

# clean_up_job: clean up when the script exits. A failure here changes neither the exit code nor a
# requeue.
clean_up_job() {
    local code=$?
    trap '' TERM USR1 INT HUP
    stop_server
    stop_guard
    remove_scratch || :
    # temporary files of save_library and save_job_script
    [ -z "${log_dir:-}" ] ||
        rm -rf -- "${RUN_DIR:?}/.lib.$attempt" "$RUN_DIR/.job.sh.$attempt"{,.settings,.toml} || :
    ! declare -F release_nodes >/dev/null || release_nodes || :
    record_script_end "$code" || :
    notify_of_end "$code"
    exit "$code"
}
