# shellcheck shell=bash
# The launch and its end: run the step, pass on what the scheduler says, and decide from the verdict
# how the job ends.

# What a launcher says at the beginning of a line when it takes its command line, or its user, for
# wrong: it has started nothing, and never will. The files of the others add theirs.
LAUNCH_REFUSALS=('^torchrun: error: ')

# Options of a step that only helps, where the scheduler would else keep it waiting for what the
# ranks hold: its file says which.
HELPER_OPTIONS=()

# catch_early_sigterm: from now on SIGTERM ends the job, and so does one that the head of the script
# has noted; but not of a job that was requeued, whose signal catch_signals looks into.
catch_early_sigterm() {
    [ -v sigterm_at ] && [ -z "${restarted:-}" ] || return 0 # builds just end
    trap 'die stopped-early "ended by a signal before training began"' TERM
    [ -z "$sigterm_at" ] || die stopped-early "ended by a signal before training began"
}

# catch_signals: from now on SIGUSR1 is the warning of the time limit, and SIGTERM somebody who ends
# the job; so is one that the head of the script has noted. Sets cancelled; and sigterm_at, in
# SECONDS since the script began, when the last SIGTERM came.
catch_signals() {
    cancelled=0
    step_may_run=''
    trap 'abort_before_launch time-too-short "the time limit came before training began"' USR1
    trap 'sigterm_at=$SECONDS; handle_stop_before_launch' TERM
    trap 'handle_stop_before_launch' INT HUP
    [ -z "${sigterm_at:-}" ] || handle_stop_before_launch
}

# abort_before_launch SLUG MESSAGE: end the job before a rank has started, and the step that may
# run.
abort_before_launch() {
    terminate_step
    die "$@"
}

# handle_stop_before_launch: a signal came; it ends the job, unless nobody has sent it to this one.
handle_stop_before_launch() {
    terminate_step
    ! signal_is_stray || requeue_after_stray_sigterm
    abort_before_launch stopped-early "ended by a signal before training began"
}

# signal_is_stray: whether the scheduler has sent SIGTERM to a job that it does not end. SIGKILL may
# follow, so the job cannot just go on.
signal_is_stray() {
    return 1
}

# requeue_after_stray_sigterm: let the scheduler start such a job again.
requeue_after_stray_sigterm() {
    [ "${SLIPWAY_MAX_REQUEUES:-0}" = 0 ] || # as at a site that resumes nothing
        continue_run requeue "got a signal before it had saved anything, and is not being ended"
}

# terminate_step: send SIGTERM to the step that may run. It is $!, as a variable that holds its
# number could be set too late for a trap.
terminate_step() {
    [ -z "$step_may_run" ] || kill "${!:-}" 2>/dev/null || :
}

# on_each_node SECONDS COMMAND...: run it once on each node, spare ones too, for at most so long, by
# the site's launcher. In the background: Bash runs traps only between commands in the foreground.
on_each_node() {
    step_may_run=1
    {
        [ ${#spare_nodes[@]} = 0 ] || set_nodes "${nodes[@]}" "${spare_nodes[@]}"
        "${launcher}_each_node" "$@"
    } &
    wait_limited $!
}

# step_on_each_node SECONDS COMMAND...: the same, for SLIPWAY_PREFLIGHT_SECONDS where that is more,
# and again where nodes that have died meanwhile can be replaced, or a process was killed. Where it
# fails, sets step_failure, the end of a message: it took too long, or has said why.
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

# run_limited SECONDS COMMAND...: run it for at most so long, or SLIPWAY_PREFLIGHT_SECONDS if that
# is more; once more if it was killed. Sets step_failure if it fails. Traps run meanwhile.
run_limited() {
    local began=$SECONDS limit=$1 code=0
    ((limit > SLIPWAY_PREFLIGHT_SECONDS)) || limit=$SLIPWAY_PREFLIGHT_SECONDS
    step_may_run=1
    # Not from the terminal: srun would read it, and timeout(1) runs it where that stops it.
    timeout --kill-after=5 "$limit" "${@:2}" </dev/null &
    wait_limited $! || code=$?
    explain_failure "$code" "$limit" "$began"
    if [ "$code" != 0 ] && retry_killed_step; then
        code=0
        run_limited "$@" || code=$?
    fi
    return "$code"
}

# capture_program_output SECONDS COMMAND...: likewise, of a program of the site, which only prints.
# Sets output, the first 64 KiB. They go to a file without a name, as a pipe can be full, and can be
# held open by a process that lives on.
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

# run_for_answer SECONDS PROGRAM ARGUMENT...: run this Python file of the library on the head node,
# in the container, for at most so long. Its first argument is the path of the file for its answer
# (answer.py), as the image's entry point may print too. Sets answer, the words. Fails without one,
# and sets step_failure.
run_for_answer() {
    local file=$log_dir/answer code=0
    check_entry_point
    : >"$file" || die cannot-write "cannot write $file: is the disk full?"
    run_limited "$1" "${on_head_node[@]}" "${container[@]}" \
        python3 "$lib/$2" "$file" "${@:3}" || code=$?
    if ! read_answer "$file" && [ "$code" = 0 ]; then
        code=1 step_failure=": $2 left no answer"
    fi
    rm -f -- "$file"
    return "$code"
}

# read_answer FILE: sets answer. Fails if the file was not written to its end.
read_answer() {
    answer=()
    mapfile -d '' -t answer 2>/dev/null <"$1" || return 1
    ((${#answer[@]} > 1)) && [ "${answer[0]}" = ${#answer[@]} ] && [ "${answer[-1]}" = end ] ||
        return 1
    answer=("${answer[@]:1:${#answer[@]}-2}")
}

# start_server SECONDS PROGRAM ARGUMENT...: the same, of a program that then serves until
# stop_server, or until this script is gone: it knows that by its standard output. Sets server, its
# process, and answer. Fails, and sets step_failure, if there is no answer within SECONDS.
start_server() {
    local line code waited=0 limit=$1 deadline
    ((limit > SLIPWAY_PREFLIGHT_SECONDS)) || limit=$SLIPWAY_PREFLIGHT_SECONDS
    deadline=$((SECONDS + limit))
    stop_server # that of an earlier attempt
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
        # Line by line, so that an entry point that prints much can go on; and second by second, as
        # Bash runs traps only when `read` has returned.
        code=0
        defer_signals
        read -r -t 1 line <&"$from_server" || code=$?
        deliver_signals
        [ "$code" != 0 ] || printf '%s\n' "$line"
        if ((code > 0 && code <= 128)); then # it has ended
            explain_failure 1 "$limit" "$SECONDS"
            return 1
        elif ((waited += code > 128, waited >= limit || SECONDS > deadline)); then
            explain_failure 124 "$limit" "$((SECONDS - limit))"
            return 1
        fi
    done
}

# defer_signals: until deliver_signals, signals are only noted. Bash (5.2) hangs where a trap ends
# the script out of `read`, and another signal comes. Sets held_traps and held_signals.
defer_signals() {
    local name
    held_traps=$(trap -p USR1 TERM INT HUP) held_signals=''
    for name in USR1 TERM INT HUP; do
        # shellcheck disable=SC2064 # the name as it is now
        trap "held_signals+=' $name'" "$name"
    done
}

# deliver_signals: the traps are what they were, and get what has come.
deliver_signals() {
    local name
    eval "$held_traps"
    for name in USR1 TERM INT HUP; do
        [[ $held_traps == *" SIG$name"* ]] || trap - "$name"
    done
    for name in $held_signals; do
        kill -s "$name" $$
    done
}

# stop_server: if there is one.
stop_server() {
    [ -n "${server:-}" ] || return 0
    kill -KILL "$server" 2>/dev/null || :
    [ -z "${from_server:-}" ] || exec {from_server}<&-
    rm -f -- "${server_file:-}" || :
    server='' from_server=''
}

# explain_failure CODE LIMIT BEGAN: why a step has failed that could run for LIMIT seconds, and
# began at BEGAN of SECONDS. timeout(1) ends with 124 then, or 137. Sets step_failure, and
# step_timed_out.
explain_failure() {
    step_failure=': see above' step_timed_out=''
    if [[ $1 == 124 || $1 == 137 ]] && ((SECONDS - $3 >= $2)); then
        step_timed_out=1
        step_failure=" within $2 s: if it is only slow, set SLIPWAY_PREFLIGHT_SECONDS to more"
    fi
}

# retry_killed_step: whether the step that has just failed with `code` is to be run again, since a
# process of it was killed, for the first time before this launch. srun then returns 143, for those
# that it has ended itself. The server that the head node answers the preflight by may be a step
# that cancel_leftover_steps ends, so it is started again.
retry_killed_step() {
    ((code > 128)) && [ -z "$step_timed_out" ] &&
        [ "${SLIPWAY_MAX_RESTARTS:-0}" != 0 ] &&
        [ "${step_repeated_in:-}" != "${attempt:-}" ] || return 1
    step_repeated_in=$attempt
    cancel_leftover_steps
    warn step-repeated \
        "attempt $attempt: a process was killed before the launch: that step is run once" \
        "more"
    [ -z "${head_is_tried:-}" ] || [ -z "${server:-}" ] || find_master_address
}

# wait_limited PID: for a process with a time limit of its own; abort_before_launch ends it. Clears
# step_may_run. Returns its exit code.
wait_limited() {
    local code
    while true; do
        code=0
        wait "$1" || code=$?
        kill -0 "$1" 2>/dev/null || break # it lives: a trap has ended wait
    done
    step_may_run=''
    return "$code"
}

# run_step FUNCTION: run the launch, which FUNCTION spells out, until it ends. Where the port of the
# rendezvous was taken between the choice and the launch, it is launched again with another one.
# Sets code; and first_step, which was saved before it.
run_step() {
    local try started
    code=$EXIT_STOPPED
    first_step=$(resumable_step)
    for try in 1 2 3; do
        started=$SECONDS
        if ! open_rendezvous; then
            [ "${restarts:-0}" = 0 ] || break # a node may have died once more
            exit "$EXIT_CONFIG"
        fi
        [ "$cancelled" = 0 ] || break
        trap 'time_limit_came=1; request_stop' USR1
        trap 'cancelled=1 sigterm_at=$SECONDS; handle_stop_signal' TERM
        trap 'cancelled=1; handle_stop_signal' INT HUP # the terminal is gone
        [ -n "${time_is_watched:-}" ] || watch_time_limit
        time_is_watched=1
        log_ranks
        record_launch_start
        launch_once "$1"
        [ "$code" != 0 ] && [ "$cancelled" = 0 ] && port_was_taken "$started" || break
        warn port-taken "port $MASTER_PORT of $head_node was taken (try $try of 3)"
        # What a process that lives on says would come into the next one's file, or replace that.
        ! kill -0 "$copier" 2>/dev/null || kill_tree "$copier"
        first_port=$((MASTER_PORT + 1))
    done
}

# port_was_taken STARTED: within a minute of its start a step said so; the rendezvous had no user's
# port, no verdict and no cause.
port_was_taken() {
    [ "$BACKEND" = ddp ] && [ -z "$port_is_given" ] && [ ! -e "$RUN_DIR/verdict.$attempt" ] &&
        [ $((SECONDS - $1)) -le 60 ] &&
        grep --quiet "port: $MASTER_PORT, .*EADDRINUSE" "$log_dir/stderr.log" && ! attempt_has_cause
}

# launch_once FUNCTION: in the background, since Bash runs traps only between commands in the
# foreground. Standard error goes through a pipe (copy_stderr). Sets code, launch_pid, copier, and
# launch_id, by which the launch's processes are known.
launch_once() {
    local errors abandoner log input output
    # several runs and starts in one allocation differ
    launch_pid='' launch_id=$job_id.$run_mark.$attempt.$$.$RANDOM
    [ "$cancelled" = 0 ] || return 0 # it came before there was a launch
    : >"$log_dir/stderr.log" || die cannot-write "cannot write $log_dir: is the disk full?"
    rm -f -- "$log_dir/code" "$log_dir/pid"
    # No >() or $(): where a trapped signal arrives as Bash 5.2 reads one, it exits with 2.
    { coproc COPY { copy_stderr "$log_dir/stderr.log" 2>&"$log"; }; } {log}>&2 2>/dev/null
    copier=$!
    input=${COPY[1]} output=${COPY[0]}
    exec {errors}>&"$input" {input}>&- {output}<&- {log}>&-
    # The step writes its own exit code: Bash 5.2 can lose it where a trapped signal arrives as the
    # step ends. Signals are for what it starts, not for this shell around it.
    (
        close_descriptors
        # The second is for the package setproctitle, which writes titles over the environment.
        export_to_ranks SLIPWAY_LAUNCH="$launch_id" SPT_NOENV=1
        [ "$nnodes" = 1 ] || unset_local_variables # srun hands all over
        trap : TERM USR1 INT HUP
        code=0
        (trap : TERM USR1 INT HUP && exec 2>&"$errors" {errors}>&- && "$1") || code=$?
        echo "$code" >"$log_dir/code" || exit "$code"
    ) &
    launch_pid=$!
    exec {errors}>&-
    [ "$cancelled" = 0 ] || handle_stop_signal # it came before there was a launch
    kill_stuck_launcher "$launch_pid" </dev/null &
    abandoner=$!
    wait_for_process "$launch_pid"
    wait_for_stderr_copy "$copier"
    kill "$abandoner" 2>/dev/null || :
    if ! read -r code 2>/dev/null <"$log_dir/code"; then
        code=0 # if it is empty, on a full disk, and no signal can have lost what `wait` says
        [ -e "$log_dir/code" ] && [ "$cancelled${time_limit_came:-}" = 0 ] && wait "$launch_pid" ||
            code=$?
    fi
    [ "$code" = 0 ] || record_launcher_refusal
}

# close_descriptors: those that others take for the life of this script, in a process that can
# outlive it, as ranks can.
close_descriptors() {
    [ -z "${watcher:-}" ] || exec {watcher}>&-
    [ -z "${heartbeat:-}" ] || exec {heartbeat}>&-
    [ -z "${from_server:-}" ] || exec {from_server}<&-
}

# copy_stderr FILE: copy standard input, as it comes, to the job's log, and to FILE, which keeps the
# beginning and the end of it (keep_ends.sh). It ends with the last process that writes, and by no
# signal, so that nothing that a rank has written is lost. If one of the two cannot be written, the
# other one still is, and the ranks do not notice.
copy_stderr() {
    trap '' TERM USR1 INT HUP
    close_descriptors
    tee --output-error=warn /dev/fd/3 3>&1 >&2 | sh "$lib/keep_ends.sh" "$1" 3>&-
}

# wait_for_stderr_copy PID: until copy_stderr has written all. A process that has outlived the
# launch holds the pipe open, and a terminal can be stopped: then it is left to itself after 1 s, or
# 31 s, or 4 s where the job is being ended: what is to be done after that needs the time until
# SIGKILL.
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

# record_launcher_refusal: where the launcher has refused what it was told, that is the attempt's
# cause (attempt_has_cause), unless a rank has left one, or a verdict.
record_launcher_refusal() {
    local line
    [ ! -e "$log_dir/cause" ] && [ ! -e "$RUN_DIR/verdict.$attempt" ] || return 0
    # No $(), as in launch_once.
    grep --extended-regexp --max-count=1 --text "${LAUNCH_REFUSALS[@]/#/--regexp=}" \
        "$log_dir/stderr.log" >"$log_dir/answer" || return 0
    IFS= read -r line <"$log_dir/answer" || return 0
    write_cause launch-refused "${line//[[:cntrl:]]/ }"
}

# write_cause SLUG SENTENCE: of the attempt, as a rank does.
write_cause() {
    echo "${ERROR_CODE[$1]} $1: $2" >"$log_dir/cause" || :
}

# kill_stuck_launcher PID: end a launcher that has not ended 30 s after it has said
# (LAUNCH_IS_ENDING) that it ends the ranks, as it may wait for a node that is gone: Slurm itself
# misses a node only after its SlurmdTimeout, which is minutes. Which nodes answer is asked
# afterwards.
kill_stuck_launcher() {
    local nothing
    [ -n "${LAUNCH_IS_ENDING:-}" ] || return 0
    trap '' USR1 INT HUP
    close_descriptors
    exec {nothing}<> <(:)
    until grep --quiet "$LAUNCH_IS_ENDING" "$log_dir/stderr.log"; do
        kill -0 "$1" 2>/dev/null || return 0
        read -r -t 5 <&"$nothing" || : # a sleep that starts no process
    done
    read -r -t 30 <&"$nothing" || :
    kill -0 "$1" 2>/dev/null || return 0
    warn launcher-stuck \
        "the launcher has not ended 30 s after it began to end the ranks: it is killed"
    kill_tree "$1"
}

# kill_tree PID: kill the process, and all that it has started.
kill_tree() {
    local child children=''
    read -r children 2>/dev/null <"/proc/$1/task/$1/children" || :
    kill -KILL "$1" 2>/dev/null || :
    for child in $children; do
        kill_tree "$child"
    done
}

# record_pid: for signal_launch, of the launch, which then replaces its shell by `exec`.
record_pid() {
    trap - TERM USR1 INT HUP
    echo "$BASHPID" >"$log_dir/pid" || die cannot-write "cannot write $log_dir: is the disk full?"
}

# signal_launch: send the launch SIGTERM, where it has called record_pid.
signal_launch() {
    local pid=''
    [ -n "$launch_pid" ] || return 0 # launch_once comes back to it
    until [ -s "$log_dir/pid" ] || ! kill -0 "$launch_pid" 2>/dev/null; do
        sleep 0.1 # it has just been started
    done
    ! read -r pid 2>/dev/null <"$log_dir/pid" || kill -TERM "$pid" 2>/dev/null || :
}

# wait_for_process PID: wait, also after a trap, which ends `wait` early.
wait_for_process() {
    local ended=0
    # 127: it is no process of this shell any more
    while [ "$ended" != 127 ] && kill -0 "$1" 2>/dev/null; do
        ended=0
        wait "$1" || ended=$?
    done
}

# request_stop [REASON]: ask the ranks to save and to stop, by the file STOP. A user's own STOP
# stays.
request_stop() {
    local reason=${1:-time-limit $job_id/$attempt} before=''
    if [ -e "$RUN_DIR/STOP" ]; then
        [ ! -f "$RUN_DIR/STOP" ] || read -r before <"$RUN_DIR/STOP" || :
        [[ $before == time-limit* ]] || return 0
    fi
    echo "$reason" >"$RUN_DIR/.STOP.$attempt" &&
        mv --force -- "$RUN_DIR/.STOP.$attempt" "$RUN_DIR/STOP" ||
        warn cannot-stop "cannot write $RUN_DIR/STOP"
}

# finish METHOD: say what the attempt has used, and end the job as its cause says, or else as the
# verdict does, since launchers hide exit codes. A run that is out of time and has gained a step,
# and one for which requeue_reason names a reason, go on by METHOD: requeue, chain, or none. A
# user's script that leaves neither cause nor verdict is known by its exit code; but by 0 not where
# its session, which leaves a verdict where all is well, has begun.
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
            log "ended with $code; to continue: $(continue_command)"
        exit "$code"
    fi
    if [ -z "$state" ] && [ "$cancelled" = 1 ]; then
        error stopped-early \
            "ended by a signal before the ranks had saved; to continue: $(continue_command)"
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

# continue_after_progress METHOD: of a run that is out of time; returns where the attempt has gained
# no step, as the next one would gain none either.
continue_after_progress() {
    if attempt_made_progress; then
        continue_run "$1" "out of time at step $step"
    else
        warn no-requeue "attempt $attempt has saved no step, so it does not continue by itself"
    fi
}

# log_reason REASON...: on one line: the error of a cause or a verdict, SLUG: SENTENCE, or a line of
# the trainer.
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

# attempt_saved_nothing: whether the last attempt has not; what a user's script saves nobody knows.
attempt_saved_nothing() {
    [ -z "$SLIPWAY_SCRIPT" ] || run_has_session || return 1
    ! attempt_made_progress
}

# read_verdict: of the attempt. Sets state, empty where there is none, step and reason.
read_verdict() {
    state='' step='' reason=''
    [ ! -f "$RUN_DIR/verdict.$attempt" ] ||
        read -r state step reason <"$RUN_DIR/verdict.$attempt" || :
}

# attempt_has_cause: whether a rank was refused before training, and so has left logs/N/cause, one
# line: CODE SLUG: SENTENCE. Sets cause_code, 2 or 78, and cause, the rest.
attempt_has_cause() {
    local LC_ALL=C line=''
    [ -f "$log_dir/cause" ] || return 1
    IFS= read -r -n 4096 line 2>/dev/null <"$log_dir/cause" || :
    [[ $line =~ ^(2|78)\ ([^[:cntrl:]]+)$ ]] || return 1
    cause_code=${BASH_REMATCH[1]} cause=${BASH_REMATCH[2]}
}

# check_process_groups: say it if the ranks of a user's script have not formed one group, of which
# sitecustomize.py has left the sizes.
check_process_groups() {
    local file size groups=()
    for file in "$log_dir"/world.*; do
        [ -f "$file" ] && read -r size <"$file" && [[ $size =~ ^[0-9]{1,6}$ ]] || continue
        groups+=("$size")
    done
    if [ ${#groups[@]} = 0 ] && [ "$code" = 0 ] && [ "$world_size" != 1 ]; then
        warn ranks-not-connected \
            "no rank has joined the others, by torch.distributed or Horovod: the script ran" \
            "$world_size times, each by itself"
    elif [ ${#groups[@]} != 0 ] && ! { [ ${#groups[@]} = 1 ] && ((groups[0] >= world_size)); }; then
        warn ranks-not-connected \
            "$world_size ranks formed ${#groups[@]} group(s) in place of one, with" \
            "$(join_by ', ' "${groups[@]:0:8}")${groups[8]:+, ...} rank(s): each group" \
            "trains by itself"
    fi
}

# wait_for_verdict SECONDS: of the attempt, for at most so long, as ranks can outlive their
# launcher; where rank 0, which writes it, was to run on this node, for no longer than the launch
# lives here.
wait_for_verdict() {
    local deadline=$((SECONDS + $1))
    until [ -f "$RUN_DIR/verdict.$attempt" ] || ((SECONDS >= deadline)); do
        [ "${this_node:-}" != "$head_node" ] || launch_runs || return 0
        sleep 0.2
    done
}

# launch_runs: whether a process of the last launch runs on this node.
launch_runs() {
    sh "$lib/find_ranks.sh" "${launch_id:-}" >/dev/null
}

# continue_run METHOD WHY: let the run go on by itself, and end this job; returns where that is
# refused or not allowed.
continue_run() {
    local count
    count=$(count_requeues)
    if [ "$count" -ge "$SLIPWAY_MAX_REQUEUES" ]; then
        warn no-requeue "has gone on by itself $count times (SLIPWAY_MAX_REQUEUES)"
        return 0
    fi
    cleanup_seconds=20 # the time limit is near; what stays is removed by the next attempt
    remove_scratch
    # The last acts: from here on no signal changes anything, as requeueing itself sends SIGTERM to
    # this script.
    trap '' TERM USR1 INT HUP
    [ "$cancelled" = 0 ] || return 0
    if ! echo "$((count + 1)) $job_id" >>"$RUN_DIR/requeues"; then
        warn no-requeue "$2, and $RUN_DIR/requeues cannot be written: is the disk full?"
        return 0
    fi
    warn requeued "$2; going on by itself ($1), $((count + 1)) of at most $SLIPWAY_MAX_REQUEUES"
    next_job=''
    if ! resubmit "$1"; then
        warn no-requeue "the scheduler does not let it go on by itself"
        return 0
    fi
    [ "$next_job" = "$job_id" ] || echo "$((count + 1)) $next_job" >>"$RUN_DIR/requeues" || :
    log "continued by job $next_job"
    exit "$EXIT_STOPPED"
}

# How often this job has gone on by itself: from RUN_DIR/requeues, lines COUNT JOB. One that was
# submitted by hand begins to count anew, beside others of the same run.
count_requeues() {
    local count job last=0
    if [ -f "$RUN_DIR/requeues" ]; then
        while read -r count job; do
            [ "$job" != "$job_id" ] || ! [[ $count =~ ^[1-9][0-9]{0,5}$ ]] || last=$count
        done <"$RUN_DIR/requeues"
    fi
    echo "$last"
}

# The trainer's own last line of an attempt without a verdict, or a word for it.
last_log_line() {
    local line
    line=$(grep '^trainer: ' "$log_dir/stderr.log" 2>/dev/null | tail --lines=1) || :
    echo "${line:-a rank, a launcher or a node ended without a verdict}"
}

# clean_up_job: at the end, however it comes. Cleaning up can change neither the exit code nor a
# requeue.
clean_up_job() {
    local code=$?
    trap '' TERM USR1 INT HUP
    stop_server
    stop_guard
    remove_scratch || :
    # what was to be moved to its place, and fills the disk
    [ -z "${log_dir:-}" ] ||
        rm -rf -- "${RUN_DIR:?}/.lib.$attempt" "$RUN_DIR/.job.sh.$attempt"{,.settings,.toml} || :
    ! declare -F release_nodes >/dev/null || release_nodes || :
    record_script_end "$code" || :
    notify_of_end "$code"
    exit "$code"
}
