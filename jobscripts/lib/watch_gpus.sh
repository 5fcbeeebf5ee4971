#!/bin/sh
# watch_gpus.sh DEVICE COMMAND...: run the command; beside it, once on each node, gpu_usage.py looks
# how busy the GPUs are until the command ends, for the account of the job (account.bash). It can
# neither end the command nor hold it up: it is no child of it, has none of its streams, and says
# nothing.
#
# Where each rank is started by itself, local rank 0 looks at all GPUs of the node, unless a rank
# sees none but its own. No variable is set: the command would inherit it.
if [ "$1" != cpu ] && { [ -n "${TRAINER_BOUND_GPUS:-}" ] ||
    [ "${LOCAL_RANK:-${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-0}}}" = 0 ]; }; then
    # -I -S: nothing of the user's Python environment. The inner shell leaves it to process 1.
    (python3 -I -S "${0%/*}/gpu_usage.py" $$ </dev/null >/dev/null 2>&1 &)
fi
shift
exec "$@"
