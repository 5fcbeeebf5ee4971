if [ "$(word requeue)" = true ] && [ "$restarts" -lt "$MAX_REQUEUES" ]; then
    echo "@{name}: out of time at step $(word step), requeueing; restart $((restarts + 1)) of at most $MAX_REQUEUES" >&2
    clean && trap '' EXIT TERM USR1 && qrerun "$PBS_JOBID" && exit 75 # requeueing ends this script, too
fi
