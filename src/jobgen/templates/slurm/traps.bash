trap 'interrupted=1; if [ ! -e "$RUN_DIR/STOP" ] || grep --quiet "^time-limit" "$RUN_DIR/STOP"; then echo "time-limit $job_id/$TRAINER_ATTEMPT" >"$RUN_DIR/STOP"; fi' USR1 # a user's STOP stays
trap 'interrupted=1' TERM # scancel, preemption: Slurm tells the ranks too, this script waits for them and never requeues
