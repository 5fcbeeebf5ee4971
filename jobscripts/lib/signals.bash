# shellcheck shell=bash
# Signals that end the job script: SIGTERM, SIGINT, SIGHUP, and SIGUSR1, the warning of the time
# limit.

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
