: "${SLURM_JOB_ID:?is not set: submit this script with sbatch}"
job_id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
restarted=${SLURM_RESTART_COUNT:-} # empty in a new job, though one had its number before
