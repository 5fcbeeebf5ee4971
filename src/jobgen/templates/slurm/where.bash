job_id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID} # as scontrol names it
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST") && [ ${#nodes[@]} -gt 0 ] || die "scontrol names no nodes"
nnodes=${#nodes[@]} cpus=${SLURM_CPUS_PER_TASK:-1} restarts=${SLURM_RESTART_COUNT:-0} scratch=$(mktemp --dry-run -- "$LOCAL_DISK/slipway-$job_id.XXXXXXXXXX")
: "${RUN_DIR:=$OUTPUT/@{job}-$job_id}"
