# Until catch_signals, SIGUSR1, SIGINT and SIGHUP end the script. A SIGTERM is only recorded: a
# requeued job can receive the one sent to its previous run. In a job that was not requeued,
# check_settings ends the script after one. The time and the SIGTERM are passed to RUN_DIR/job.sh if
# that replaces this script.
end_early() { # CODE SLUG SENTENCE
    echo "$script_name: error[$2]: $3 before training began" >&2 || :
    exit "$1"
}
trap 'end_early 78 time-too-short "the time limit was reached"' USR1
trap 'end_early 75 stopped-early "ended by a signal"' INT HUP
sigterm_at=''
[[ ${slipway_began:-} != "$$ "* ]] || read -r _ SECONDS sigterm_at <<<"$slipway_began"
unset -v slipway_began
trap 'sigterm_at=0' TERM # not $SECONDS: Bash runs a trap after the current command
