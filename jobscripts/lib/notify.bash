# shellcheck shell=bash
# SLIPWAY_NOTIFY: a program of the user or the site that runs at certain events of a job.

: "${SLIPWAY_NOTIFY_SECONDS:=20}"

# notify EVENT MESSAGE: run `PROGRAM EVENT RUN_DIR MESSAGE` in the background. Its output goes to
# logs/N/notify.log. If it fails or is slow, the job is not affected. TMPDIR is unset if the folder
# is missing, as the job's scratch folder is removed before the end. Sets notifier, its process
# number.
notify() {
    [ -n "${SLIPWAY_NOTIFY:-}" ] || return 0
    (
        trap '' TERM USR1 INT HUP
        [ -d "${TMPDIR:-/}" ] || unset -v TMPDIR
        exec timeout --kill-after=5 "$SLIPWAY_NOTIFY_SECONDS" \
            "$SLIPWAY_NOTIFY" "$1" "$RUN_DIR" "$2" </dev/null >>"$log_dir/notify.log" 2>&1
    ) &
    notifier=$!
}

# notify_of_end CODE: run the program at the end of a job that has begun an attempt, and wait for
# it. The message contains the last line of the job's log.
notify_of_end() {
    [ -n "${log_dir:-}" ] || return 0
    notify end "exit code $1: ${last_message:-}"
    [ -z "${notifier:-}" ] || wait "$notifier" 2>/dev/null || :
}

# check_notify: fail if SLIPWAY_NOTIFY is not an executable file on this machine.
check_notify() {
    [ -z "${SLIPWAY_NOTIFY:-}" ] || { [ -f "$SLIPWAY_NOTIFY" ] && [ -x "$SLIPWAY_NOTIFY" ]; } ||
        die no-notify-program \
            "SLIPWAY_NOTIFY=$SLIPWAY_NOTIFY is not a program here: set it to an executable file"
}
