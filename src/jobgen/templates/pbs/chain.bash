if [ "$(word requeue)" = true ] && [ "$restarts" -lt "$MAX_REQUEUES" ]; then # a person, below, begins to count anew
    ! next=$(env --ignore-environment "${outside[@]}" RESTARTS=$((restarts + 1)) RUN_DIR="$RUN_DIR" qsub -V -W "depend=afterany:$PBS_JOBID" "$RUN_DIR/job.sh") ||
        { echo "@{name}: out of time at step $(word step), continued by job $next; restart $((restarts + 1)) of at most $MAX_REQUEUES" >&2 && exit 75; }
fi
