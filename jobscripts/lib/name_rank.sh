#!/bin/sh
# name_rank.sh SOURCE COMMAND...: run the command as a rank, with the rank variables of torch and
# Horovod. SOURCE says who has numbered the process: slurm (srun), openmpi (mpirun), or given (RANK
# and LOCAL_RANK are set). The script sets no other variable, because the command would inherit it.
set -eu
case $1 in
    slurm)
        RANK=$SLURM_PROCID
        LOCAL_RANK=$SLURM_LOCALID
        ;;
    openmpi)
        RANK=$OMPI_COMM_WORLD_RANK
        LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK
        ;;
    given) ;;
esac
shift
WORLD_SIZE=$TRAINER_WORLD_SIZE
LOCAL_WORLD_SIZE=$TRAINER_RANKS_PER_NODE
export RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE
if [ -n "${HOROVOD_SIZE:-}" ]; then
    # Horovod identifies a node by a name that its ranks share: here the number of the node.
    HOROVOD_CROSS_RANK=$((RANK / LOCAL_WORLD_SIZE))
    export HOROVOD_RANK="$RANK" HOROVOD_LOCAL_RANK="$LOCAL_RANK"
    export HOROVOD_CROSS_RANK HOROVOD_HOSTNAME="$HOROVOD_CROSS_RANK"
fi
exec "$@"
