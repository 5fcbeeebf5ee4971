read -r MASTER_ADDR _ < <(getent ahosts "${nodes[0]}") && [[ $nnodes = 1 || $MASTER_ADDR != @(127.*|::1) ]] ||
    die "${nodes[0]} resolves to ${MASTER_ADDR:-nothing} here, where no other node can reach it: the site must mend its hosts"
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)) # differs from job to job; clients get 32768 and up
