#!/bin/sh
# watch_gpus.sh DEVICE COMMAND...: run the command. Beside it, one gpu_usage.py per node samples the
# GPUs until the command ends, for the job's account (account.bash). It cannot end or block the
# command: it is not its child, shares none of its streams, and prints nothing.
#
# If a launcher starts each rank separately, local rank 0 starts gpu_usage.py for all GPUs of the
# node, unless each rank sees only its own GPUs. This script sets no variable, because the command
# would inherit it.
if [ "$1" != cpu ] && { [ -n "${TRAINER_BOUND_GPUS:-}" ] ||
    [ "${LOCAL_RANK:-${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-0}}}" = 0 ]; }; then
    # -I -S: ignore the user's Python environment. Process 1 adopts it when the subshell ends.
    (python3 -I -S "${0%/*}/gpu_usage.py" $$ </dev/null >/dev/null 2>&1 &)
fi
shift
exec "$@"
