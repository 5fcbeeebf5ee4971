job_id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID} # as scontrol names it
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
nnodes=${#nodes[@]} cpus=${SLURM_CPUS_PER_TASK:-1} restarts=${SLURM_RESTART_COUNT:-0} scratch=$LOCAL_DISK/slipway-$job_id
: "${RUN_DIR:=$OUTPUT/@{job}-$job_id}"
