read -r MASTER_ADDR _ < <(getent ahosts "${nodes[0]}") && [[ $nnodes = 1 || $MASTER_ADDR != @(127.*|::1) ]] ||
    die "${nodes[0]} resolves to ${MASTER_ADDR:-nothing} here, where no other node can reach it: the site must mend its hosts"
