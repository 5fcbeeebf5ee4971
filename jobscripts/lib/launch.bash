# shellcheck shell=bash
# The launch: run the ranks, copy their messages to the log, and wait for their end.

# Regular expressions of the messages by which a launcher rejects its command line or its user. Such
# a launcher has started nothing, and a retry cannot help. The launchers' files add theirs.
LAUNCH_REFUSALS=('^torchrun: error: ')

# run_launch FUNCTION: run FUNCTION, which starts the launcher, and wait for its end. If another
# process took the rendezvous port before the launcher could bind it, try again with another port,
# up to three times in all. Sets code, the exit code, and first_step, the step of the newest
# checkpoint before the launch.
run_launch() {
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
