job_id=$(date +%Y%m%d-%H%M%S)-$$ nodes=(127.0.0.1) nnodes=1 restarts=0
scratch=$(mktemp --dry-run -- "$LOCAL_DISK/slipway-$job_id.XXXXXXXXXX")
: "${RUN_DIR:=$OUTPUT/@{job}-$job_id}"
