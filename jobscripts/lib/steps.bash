# shellcheck shell=bash
# Steps: commands that run on one or all nodes before the launch, with a time limit. Slurm calls
# them job steps.

# The command prefix that runs a command on the first node, if this script is on another machine.
on_head_node=()

# Options of a helper step, so that it does not wait for resources that the ranks hold. The
# scheduler's file sets them.
HELPER_OPTIONS=()

# terminate_step: send SIGTERM to the step that may be running. It uses $!, because a trap could run
# before a variable with the process number is set.
terminate_step() {
    [ -z "$step_may_run" ] || kill "${!:-}" 2>/dev/null || :
}

# run_on_nodes SECONDS COMMAND...: run COMMAND once on each node, spare nodes included, with the
# site's launcher and this time limit. The command runs in the background, because Bash runs traps
# only between foreground commands. Returns its exit code.
run_on_nodes() {
    step_may_run=1
    {
        [ ${#spare_nodes[@]} = 0 ] || set_nodes "${nodes[@]}" "${spare_nodes[@]}"
        "${launcher}_each_node" "$@"
    } &
    wait_limited $!
}

# run_step_on_nodes SECONDS COMMAND...: like run_on_nodes, with a limit of SECONDS or
# SLIPWAY_PREFLIGHT_SECONDS, whichever is longer. Runs the command again if nodes have died and can
# be replaced, or once if a process was killed. Returns the exit code. Sets step_failure
# (explain_failure).
run_step_on_nodes() {
    local began=$SECONDS limit=$1 code=0
    ((limit > SLIPWAY_PREFLIGHT_SECONDS)) || limit=$SLIPWAY_PREFLIGHT_SECONDS
    run_on_nodes "$limit" "${@:2}" || code=$?
    explain_failure "$code" "$limit" "$began"
    if [ "$code" != 0 ] && { replace_lost_nodes || retry_killed_step; }; then
        code=0
        run_step_on_nodes "$@" || code=$?
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
