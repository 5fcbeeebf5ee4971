: "${PBS_JOBID:?is not set: submit this script with qsub}"
cd -- "$PBS_O_WORKDIR" # PBS starts in the home folder
job_id=${PBS_JOBID%%.*} # 12[1] of an array becomes 12_1, as brackets match file names
job_id=${job_id/[/_}
job_id=${job_id%]}
