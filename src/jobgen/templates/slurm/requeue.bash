if [ "$(word requeue)" = true ] && [ "$restarts" -lt "$MAX_REQUEUES" ]; then
    echo "@{name}: out of time at step $(word step), requeueing; restart $((restarts + 1)) of at most $MAX_REQUEUES" >&2
    clean && trap '' EXIT TERM USR1 && scontrol requeue "$job_id" && exit 75 # requeueing sends TERM here too
fi
