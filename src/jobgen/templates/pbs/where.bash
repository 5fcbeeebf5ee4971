mapfile -t words < <(xargs --no-run-if-empty printf '%s\n' <<<"$TRAIN_ARGS") && set -- "${words[@]}"
mapfile -t nodes < <(awk '!seen[$0]++' "$PBS_NODEFILE") # a file of this node only, in which nodes stand several times
runs=$(qstat -f "$PBS_JOBID" | sed --quiet 's/.*\(run\|start\)_count = //p') restarts=$((${RESTARTS:-0} + ${runs:-1} - 1))
job_id=${PBS_JOBID%%.*} nnodes=${#nodes[@]} cpus=${NCPUS:-${PBS_NUM_PPN:-@{cpus}}} scratch=$(mktemp --dry-run -- "$LOCAL_DISK/slipway-$job_id.XXXXXXXXXX") RUN_DIR=${RUN_DIR:-$OUTPUT/@{job}-$job_id}
outside=() && for name in $(compgen -e); do outside+=("$name=${!name}"); done # for the next job of a chain, before anything changes
