trap 'interrupted=1; (set -o noclobber; echo "time-limit $job_id/$TRAINER_ATTEMPT" >"$RUN_DIR/STOP") 2>/dev/null || :' USR1 # a STOP that is there stays
trap 'interrupted=1' TERM # scancel, preemption: Slurm tells the ranks too, this script waits for them and never requeues
