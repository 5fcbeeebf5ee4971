if [ "$(word requeue)" = true ] && [ "$restarts" -lt "$MAX_REQUEUES" ]; then
    echo "@{name}: out of time at step $(word step), requeued; restart $((restarts + 1)) of at most $MAX_REQUEUES" >&2
    clean && trap '' EXIT TERM USR1 # requeueing ends this script, too
    ! qrerun "$PBS_JOBID" || exit 75
fi
