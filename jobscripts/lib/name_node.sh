#!/bin/sh
# name_node.sh SOURCE COMMAND...: run the command, once on each node, with the number of its node in
# NODE_RANK and, for torchrun, in PET_NODE_RANK. SOURCE is the launcher: slurm (srun) or openmpi
# (mpirun). The script sets no other variable, because the command would inherit it.
set -eu
case $1 in
    slurm) NODE_RANK=$SLURM_NODEID ;;
    openmpi) NODE_RANK=$OMPI_COMM_WORLD_RANK ;;
esac
shift
export NODE_RANK PET_NODE_RANK="$NODE_RANK"
exec "$@"
