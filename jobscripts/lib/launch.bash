# shellcheck shell=bash
# The launch: run the ranks, handle signals from the scheduler, and decide from the verdict how the
# job ends. A "step" here is one command that runs on one or all nodes; Slurm calls it a job step.

# Regular expressions of the messages by which a launcher rejects its command line or its user. Such
# a launcher has started nothing, and a retry cannot help. The launchers' files add theirs.
LAUNCH_REFUSALS=('^torchrun: error: ')

# Options of a helper step, so that it does not wait for resources that the ranks hold. The
# scheduler's file sets them.
HELPER_OPTIONS=()

# catch_early_sigterm: end the job if SIGTERM arrives before catch_signals has run. This includes a
# SIGTERM that the head of the script has recorded in sigterm_at. Does nothing in a requeued job,
# whose SIGTERM catch_signals checks.
catch_early_sigterm() {
    [ -v sigterm_at ] && [ -z "${restarted:-}" ] || return 0 # unset in builds: SIGTERM ends them
    trap 'die stopped-early "a signal ended the job before training began"' TERM
    [ -z "$sigterm_at" ] || die stopped-early "a signal ended the job before training began"
}

# catch_signals: install the traps for the time before the launch. SIGUSR1 is the warning before the
# time limit. SIGTERM, SIGINT and SIGHUP end the job. A SIGTERM that the head of the script has
# recorded is handled at once. Sets cancelled to 0; the trap sets sigterm_at, the time of the last
# SIGTERM in seconds since the script began.
catch_signals() {
    cancelled=0
    step_may_run=''
    trap 'abort_before_launch time-too-short "the time ran out before training began"' USR1
    trap 'sigterm_at=$SECONDS; handle_stop_before_launch' TERM
    trap 'handle_stop_before_launch' INT HUP
    [ -z "${sigterm_at:-}" ] || handle_stop_before_launch
}

# abort_before_launch SLUG MESSAGE: end the job, and the step that may be running, before a rank has
# started.
abort_before_launch() {
    terminate_step
    die "$@"
}

# handle_stop_before_launch: end the job after a signal. A stray signal requeues the job
# (signal_is_stray).
handle_stop_before_launch() {
    terminate_step
    ! signal_is_stray || requeue_after_stray_sigterm
    abort_before_launch stopped-early "a signal ended the job before training began"
}

# signal_is_stray: return 0 if the scheduler sent SIGTERM although it does not end this job. SIGKILL
# may follow, so the job cannot simply continue. Returns 1 by default. (slurm.bash overrides this
# default.)
signal_is_stray() {
    return 1
}

# requeue_after_stray_sigterm: requeue the job after a stray SIGTERM. Returns if that is not
# possible.
requeue_after_stray_sigterm() {
    [ "${SLIPWAY_MAX_REQUEUES:-0}" = 0 ] || # 0, for example, if the site does not resume jobs
        continue_run requeue "stray SIGTERM before the first checkpoint; the job is not being ended"
}

# terminate_step: send SIGTERM to the step that may be running. It uses $!, because a trap could run
# before a variable with the process number is set.
terminate_step() {
    [ -z "$step_may_run" ] || kill "${!:-}" 2>/dev/null || :
}

# on_each_node SECONDS COMMAND...: run COMMAND once on each node, spare nodes included, with the
# site's launcher and this time limit. The command runs in the background, because Bash runs traps
# only between foreground commands. Returns its exit code.
on_each_node() {
    step_may_run=1
    {
        [ ${#spare_nodes[@]} = 0 ] || set_nodes "${nodes[@]}" "${spare_nodes[@]}"
        "${launcher}_each_node" "$@"
    } &
    wait_limited $!
}

# step_on_each_node SECONDS COMMAND...: like on_each_node, with a limit of SECONDS or
# SLIPWAY_PREFLIGHT_SECONDS, whichever is longer. Runs the command again if nodes have died and can
# be replaced, or once if a process was killed. Returns the exit code. Sets step_failure
# (explain_failure).
step_on_each_node() {
    local began=$SECONDS limit=$1 code=0
    ((limit > SLIPWAY_PREFLIGHT_SECONDS)) || limit=$SLIPWAY_PREFLIGHT_SECONDS
    on_each_node "$limit" "${@:2}" || code=$?
    explain_failure "$code" "$limit" "$began"
    if [ "$code" != 0 ] && { replace_lost_nodes || retry_killed_step; }; then
        code=0
        step_on_each_node "$@" || code=$?
    fi
    return "$code"
}

# run_limited SECONDS COMMAND...: run COMMAND with a time limit of SECONDS or
# SLIPWAY_PREFLIGHT_SECONDS, whichever is longer. Runs it once more if it was killed. Traps run in
# the meantime. Returns the exit code. Sets step_failure (explain_failure).
run_limited() {
    local began=$SECONDS limit=$1 code=0
    ((limit > SLIPWAY_PREFLIGHT_SECONDS)) || limit=$SLIPWAY_PREFLIGHT_SECONDS
    step_may_run=1
    # Standard input is not the terminal: srun would read from it, and timeout(1) runs the command
    # in a background process group, which the terminal stops when it reads.
    timeout --kill-after=5 "$limit" "${@:2}" </dev/null &
    wait_limited $! || code=$?
    explain_failure "$code" "$limit" "$began"
    if [ "$code" != 0 ] && retry_killed_step; then
        code=0
        run_limited "$@" || code=$?
    fi
    return "$code"
}

# capture_program_output SECONDS COMMAND...: like run_limited, for a program of the site that only
# prints. Sets output, its first 64 KiB. The output goes to an unlinked file: a pipe can be full,
# and a process that outlives the program can hold it open.
capture_program_output() {
    local file kept code=0
    file=$(mktemp -- "$SLIPWAY_LOCAL_DISK/slipway-output.XXXXXXXXXX") ||
        die cannot-write \
            "cannot write $SLIPWAY_LOCAL_DISK: set SLIPWAY_LOCAL_DISK to another folder"
    exec {kept}<>"$file"
    rm -f -- "$file"
    file=/proc/$BASHPID/fd/$kept
    # shellcheck disable=SC2016 # for the shell around the command
    run_limited "$1" sh -c 'exec "$@" >"$0"' "$file" "${@:2}" || code=$?
    output=$(head --bytes=65536 -- "$file" | tr --delete '\0')
    exec {kept}>&-
    return "$code"
}

# run_for_answer SECONDS PROGRAM ARGUMENT...: run PROGRAM, a Python file of the library, on the
# first node and in the container, with a time limit as in run_limited. The program writes its
# answer to the file that is its first argument (answer.py), because the image's entry point may
# print to standard output. Sets answer, an array of words. Fails without an answer, and sets
# step_failure.
run_for_answer() {
    local file=$log_dir/answer code=0
    check_entry_point
    : >"$file" || die cannot-write "cannot write $file: is the disk full?"
    run_limited "$1" "${on_head_node[@]}" "${container[@]}" \
        python3 "$lib/$2" "$file" "${@:3}" || code=$?
    if ! read_answer "$file" && [ "$code" = 0 ]; then
        code=1 step_failure=": $2 wrote no answer"
    fi
    rm -f -- "$file"
    return "$code"
}

# read_answer FILE: read an answer. Sets answer. Fails if the file is incomplete.
read_answer() {
    answer=()
    mapfile -d '' -t answer 2>/dev/null <"$1" || return 1
    ((${#answer[@]} > 1)) && [ "${answer[0]}" = ${#answer[@]} ] && [ "${answer[-1]}" = end ] ||
        return 1
    answer=("${answer[@]:1:${#answer[@]}-2}")
}

# start_server SECONDS PROGRAM ARGUMENT...: like run_for_answer, for a program that continues to
# serve after its answer. It ends with stop_server, or when this script has ended, which it detects
# by its standard output. Sets server, its process number, and answer. Fails, and sets step_failure,
# if there is no answer within the time limit.
start_server() {
    local line code waited=0 limit=$1 deadline
    ((limit > SLIPWAY_PREFLIGHT_SECONDS)) || limit=$SLIPWAY_PREFLIGHT_SECONDS
    deadline=$((SECONDS + limit))
    stop_server # the server of an earlier attempt
    check_entry_point
    server_file=$log_dir/server
    : >"$server_file" || die cannot-write "cannot write $server_file: is the disk full?"
    exec {from_server}< <(
        trap '' TERM USR1 INT HUP
        close_descriptors
        exec "${on_head_node[@]}" "${container[@]}" \
            python3 "$lib/$2" "$server_file" "${@:3}" </dev/null
    )
    server=$!
    until read_answer "$server_file"; do
        # Read each line, so that an entry point that prints much does not block. Read for at most
        # one second, because Bash runs traps only after `read` has returned.
        code=0
        defer_signals
        read -r -t 1 line <&"$from_server" || code=$?
        deliver_signals
        [ "$code" != 0 ] || printf '%s\n' "$line"
        if ((code > 0 && code <= 128)); then # end of file: the program has ended
            explain_failure 1 "$limit" "$SECONDS"
            return 1
        elif ((waited += code > 128, waited >= limit || SECONDS > deadline)); then
            explain_failure 124 "$limit" "$((SECONDS - limit))"
            return 1
        fi
    done
}

# defer_signals: only record signals until deliver_signals is called. Bash 5.2 hangs if a trap ends
# the script during `read` and another signal arrives. Sets saved_traps and deferred_signals.
defer_signals() {
    local name
    saved_traps=$(trap -p USR1 TERM INT HUP) deferred_signals=''
    for name in USR1 TERM INT HUP; do
        # shellcheck disable=SC2064 # expands the name now
        trap "deferred_signals+=' $name'" "$name"
    done
}

# deliver_signals: restore the traps and send this script the recorded signals.
deliver_signals() {
    local name
    eval "$saved_traps"
    for name in USR1 TERM INT HUP; do
        [[ $saved_traps == *" SIG$name"* ]] || trap - "$name"
    done
    for name in $deferred_signals; do
        kill -s "$name" $$
    done
}

# stop_server: kill the server, if one is running. Sets server and from_server to empty.
stop_server() {
    [ -n "${server:-}" ] || return 0
    kill -KILL "$server" 2>/dev/null || :
    [ -z "${from_server:-}" ] || exec {from_server}<&-
    rm -f -- "${server_file:-}" || :
    server='' from_server=''
}

# explain_failure CODE LIMIT BEGAN: describe why a step failed. LIMIT is its time limit in seconds,
# BEGAN the value of SECONDS when it started. timeout(1) returns 124 or 137 after a timeout. Sets
# step_failure, the end of an error message, and step_timed_out.
explain_failure() {
    step_failure=': see above' step_timed_out=''
    if [[ $1 == 124 || $1 == 137 ]] && ((SECONDS - $3 >= $2)); then
        step_timed_out=1
        step_failure=" within $2 s: if it is only slow, increase SLIPWAY_PREFLIGHT_SECONDS"
    fi
}

# retry_killed_step: return 0 if the failed step must run again because one of its processes was
# killed. Allows this once per attempt. Reads `code`; srun returns 143 for processes that it has
# terminated itself. cancel_leftover_steps may end the server that answers the preflight, so this
# function starts the server again.
retry_killed_step() {
    ((code > 128)) && [ -z "$step_timed_out" ] &&
        [ "${SLIPWAY_MAX_RESTARTS:-0}" != 0 ] &&
        [ "${step_retried_in:-}" != "${attempt:-}" ] || return 1
    step_retried_in=$attempt
    cancel_leftover_steps
    warn step-repeated \
        "attempt $attempt: a process was killed before the launch: running that step once" \
        "more"
    [ -z "${first_node_is_probed:-}" ] || [ -z "${server:-}" ] || find_master_address
}

# wait_limited PID: wait for a process that has its own time limit and that abort_before_launch can
# end. Clears step_may_run. Returns the exit code of the process.
wait_limited() {
    local code
    while true; do
        code=0
        wait "$1" || code=$?
        kill -0 "$1" 2>/dev/null || break # if it still runs, a trap has interrupted `wait`
    done
    step_may_run=''
    return "$code"
}

# run_step FUNCTION: run FUNCTION, which starts the launcher, and wait for its end. If another
# process took the rendezvous port before the launcher could bind it, try again with another port,
# up to three times in all. Sets code, the exit code, and first_step, the step of the newest
# checkpoint before the launch.
run_step() {
    local try started
    code=$EXIT_STOPPED
    first_step=$(resumable_step)
    for try in 1 2 3; do
        started=$SECONDS
        if ! open_rendezvous; then
            [ "${restarts:-0}" = 0 ] || break # another node may have died
            exit "$EXIT_CONFIG"
        fi
        [ "$cancelled" = 0 ] || break
        trap 'time_limit_came=1; request_stop' USR1
        trap 'cancelled=1 sigterm_at=$SECONDS; handle_stop_signal' TERM
        trap 'cancelled=1; handle_stop_signal' INT HUP # HUP: the terminal was closed
        [ -n "${time_is_watched:-}" ] || watch_time_limit
        time_is_watched=1
        log_ranks
        record_launch_start
        launch_once "$1"
        [ "$code" != 0 ] && [ "$cancelled" = 0 ] && port_was_taken "$started" || break
        warn port-taken "port $MASTER_PORT of $head_node was taken (try $try of 3)"
        # A copier that still runs would write into the log file of the next launch, or replace it.
        ! kill -0 "$copier" 2>/dev/null || kill_tree "$copier"
        first_port=$((MASTER_PORT + 1))
    done
}

# port_was_taken STARTED: return 0 if the launch failed because the port was in use: the log reports
# it within a minute of STARTED, the user did not set the port, and no verdict or cause exists.
port_was_taken() {
    [ "$BACKEND" = ddp ] && [ -z "$port_is_given" ] && [ ! -e "$RUN_DIR/verdict.$attempt" ] &&
        [ $((SECONDS - $1)) -le 60 ] &&
        grep --quiet "port: $MASTER_PORT, .*EADDRINUSE" "$log_dir/stderr.log" && ! attempt_has_cause
}

# launch_once FUNCTION: run FUNCTION in the background, because Bash runs traps only between
# foreground commands. Its standard error goes through a pipe to copy_stderr. Sets code; launch_pid;
# copier, the process of copy_stderr; and launch_id, which identifies the launch's processes.
launch_once() {
    local errors abandoner log input output
    # The identifier is unique, also for several runs and launches in one allocation.
    launch_pid='' launch_id=$job_id.$run_mark.$attempt.$$.$RANDOM
    [ "$cancelled" = 0 ] || return 0 # a signal arrived before the launch
    : >"$log_dir/stderr.log" || die cannot-write "cannot write $log_dir: is the disk full?"
    rm -f -- "$log_dir/code" "$log_dir/pid"
    # No >() or $() here: Bash 5.2 exits with 2 if a trapped signal arrives while it parses one.
    { coproc COPY { copy_stderr "$log_dir/stderr.log" 2>&"$log"; }; } {log}>&2 2>/dev/null
    copier=$!
    input=${COPY[1]} output=${COPY[0]}
    exec {errors}>&"$input" {input}>&- {output}<&- {log}>&-
    # The subshell writes the launcher's exit code to a file: Bash 5.2 can lose it if a trapped
    # signal arrives as the launcher ends. Signals are meant for the launcher, so the subshell
    # ignores them.
    (
        close_descriptors
        # SPT_NOENV keeps the package setproctitle from overwriting the environment in /proc, where
        # find_ranks.sh reads SLIPWAY_LAUNCH.
        export_to_ranks SLIPWAY_LAUNCH="$launch_id" SPT_NOENV=1
        [ "$nnodes" = 1 ] || unset_local_variables # srun passes the whole environment
        trap : TERM USR1 INT HUP
        code=0
        (trap : TERM USR1 INT HUP && exec 2>&"$errors" {errors}>&- && "$1") || code=$?
        echo "$code" >"$log_dir/code" || exit "$code"
    ) &
    launch_pid=$!
    exec {errors}>&-
    [ "$cancelled" = 0 ] || handle_stop_signal # a signal arrived before launch_pid was set
    kill_stuck_launcher "$launch_pid" </dev/null &
    abandoner=$!
    wait_for_process "$launch_pid"
    wait_for_stderr_copy "$copier"
    kill "$abandoner" 2>/dev/null || :
    if ! read -r code 2>/dev/null <"$log_dir/code"; then
        code=0 # the file is empty if the disk is full: use `wait`, unless a signal has arrived
        [ -e "$log_dir/code" ] && [ "$cancelled${time_limit_came:-}" = 0 ] && wait "$launch_pid" ||
            code=$?
    fi
    [ "$code" = 0 ] || record_launcher_refusal
}

# close_descriptors: close the descriptors whose other ends detect the end of this script. Call it
# in each process that can outlive the script, as ranks can.
close_descriptors() {
    [ -z "${watcher:-}" ] || exec {watcher}>&-
    [ -z "${heartbeat:-}" ] || exec {heartbeat}>&-
    [ -z "${from_server:-}" ] || exec {from_server}<&-
}

# copy_stderr FILE: copy standard input to the job's log and to FILE as it arrives. FILE keeps only
# its beginning and end (keep_ends.sh). The function ignores signals and ends when the last writer
# has closed the pipe, so nothing that a rank writes is lost. If one of the two outputs cannot be
# written, the other one still is, and the ranks are not affected.
copy_stderr() {
    trap '' TERM USR1 INT HUP
    close_descriptors
    tee --output-error=warn /dev/fd/3 3>&1 >&2 | sh "$lib/keep_ends.sh" "$1" 3>&-
}

# wait_for_stderr_copy PID: wait until copy_stderr has written everything. A process that outlives
# the launch holds the pipe open, and a stopped terminal blocks it, so the wait is limited: 1 s if
# no process of the launch runs on this node, 4 s if the job is being ended, else 31 s. The
# remaining time before SIGKILL is needed for other work.
wait_for_stderr_copy() {
    local looks pause=0.02
    for ((looks = 0; looks < 80; looks++)); do
        kill -0 "$1" 2>/dev/null || return 0
        ((looks < 50)) || pause=1
        ((looks < 50)) || ! launch_runs || return 0
        ((looks < 53)) || [ "$cancelled${time_limit_came:-}" = 0 ] || return 0
        sleep "$pause"
    done
}

# record_launcher_refusal: if the launcher has rejected its command line or user, write that as the
# attempt's cause (attempt_has_cause). Does nothing if a rank has left a cause or a verdict.
record_launcher_refusal() {
    local line
    [ ! -e "$log_dir/cause" ] && [ ! -e "$RUN_DIR/verdict.$attempt" ] || return 0
    # No $(), for the reason given in launch_once.
    grep --extended-regexp --max-count=1 --text "${LAUNCH_REFUSALS[@]/#/--regexp=}" \
        "$log_dir/stderr.log" >"$log_dir/answer" || return 0
    IFS= read -r line <"$log_dir/answer" || return 0
    write_cause launch-refused "${line//[[:cntrl:]]/ }"
}

# write_cause SLUG SENTENCE: write the attempt's cause in the same format as a rank.
write_cause() {
    echo "${ERROR_CODE[$1]} $1: $2" >"$log_dir/cause" || :
}

# kill_stuck_launcher PID: kill a launcher that is still running 30 s after it has logged that it
# ends the ranks (LAUNCH_IS_ENDING). It may be waiting for a dead node, which Slurm detects only
# after SlurmdTimeout, in minutes. plan_restart then checks which nodes respond.
kill_stuck_launcher() {
    local nothing
    [ -n "${LAUNCH_IS_ENDING:-}" ] || return 0
    trap '' USR1 INT HUP
    close_descriptors
    exec {nothing}<> <(:)
    until grep --quiet "$LAUNCH_IS_ENDING" "$log_dir/stderr.log"; do
        kill -0 "$1" 2>/dev/null || return 0
        read -r -t 5 <&"$nothing" || : # sleeps without starting a process
    done
    read -r -t 30 <&"$nothing" || :
    kill -0 "$1" 2>/dev/null || return 0
    warn launcher-stuck \
        "the launcher is still running 30 s after it began to end the ranks: killing it"
    kill_tree "$1"
}

# kill_tree PID: kill the process and all its descendants.
kill_tree() {
    local child children=''
    read -r children 2>/dev/null <"/proc/$1/task/$1/children" || :
    kill -KILL "$1" 2>/dev/null || :
    for child in $children; do
        kill_tree "$child"
    done
}

# record_pid: write the launcher's process number for signal_launch. The caller runs in the launch's
# subshell and then replaces that shell with the launcher by `exec`.
record_pid() {
    trap - TERM USR1 INT HUP
    echo "$BASHPID" >"$log_dir/pid" || die cannot-write "cannot write $log_dir: is the disk full?"
}

# signal_launch: send SIGTERM to the launcher, if it has called record_pid.
signal_launch() {
    local pid=''
    [ -n "$launch_pid" ] || return 0 # launch_once calls handle_stop_signal once it is set
    until [ -s "$log_dir/pid" ] || ! kill -0 "$launch_pid" 2>/dev/null; do
        sleep 0.1 # the launch has just started
    done
    ! read -r pid 2>/dev/null <"$log_dir/pid" || kill -TERM "$pid" 2>/dev/null || :
}

# wait_for_process PID: wait for a process, also after a trap has interrupted `wait`.
wait_for_process() {
    local ended=0
    # 127: it is no longer a child of this shell
    while [ "$ended" != 127 ] && kill -0 "$1" 2>/dev/null; do
        ended=0
        wait "$1" || ended=$?
    done
}

# request_stop [REASON]: request the ranks to save and stop, by writing the file STOP. Keeps a STOP
# that the user has written.
request_stop() {
    local reason=${1:-time-limit $job_id/$attempt} before=''
    if [ -e "$RUN_DIR/STOP" ]; then
        [ ! -f "$RUN_DIR/STOP" ] || read -r before <"$RUN_DIR/STOP" || :
        [[ $before == time-limit* ]] || return 0
    fi
    echo "$reason" >"$RUN_DIR/.STOP.$attempt" &&
        mv --force -- "$RUN_DIR/.STOP.$attempt" "$RUN_DIR/STOP" ||
        warn cannot-stop "cannot write $RUN_DIR/STOP: the ranks are not requested to stop"
}

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
