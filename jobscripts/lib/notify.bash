# shellcheck shell=bash
# SLIPWAY_NOTIFY: a program of the user's or of the site's, run when something happens to a job.

: "${SLIPWAY_NOTIFY_SECONDS:=20}"

# notify EVENT MESSAGE: run it as `PROGRAM EVENT RUN_DIR MESSAGE`, in the background; what it says
# goes to logs/N/notify.log. Neither its failure nor its slowness changes anything. It gets no
# TMPDIR that is missing: that of the job is removed before the end.
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

# notify_of_end CODE: the same at the end of a job that had begun an attempt, and wait until it is
# done. The message is the last one of the job's log.
notify_of_end() {
    [ -n "${log_dir:-}" ] || return 0
    notify end "exit code $1: ${last_note:-}"
    [ -z "${notifier:-}" ] || wait "$notifier" 2>/dev/null || :
}

# check_notify: fails if SLIPWAY_NOTIFY cannot be run here.
check_notify() {
    [ -z "${SLIPWAY_NOTIFY:-}" ] || { [ -f "$SLIPWAY_NOTIFY" ] && [ -x "$SLIPWAY_NOTIFY" ]; } ||
        die no-notify-program \
            "SLIPWAY_NOTIFY=$SLIPWAY_NOTIFY is no program here: give the path of an executable file"
}
