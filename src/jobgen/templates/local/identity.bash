job_id=$(date +%Y%m%d-%H%M%S)-$$
