# shellcheck shell=bash
# Slurm's srun as what starts processes on the nodes.

# srun_each_node SECONDS COMMAND...: once on each node, for at most so long.
srun_each_node() {
    local limit=$1
    shift
    exec timeout --kill-after=5 "$limit" \
        srun --nodes="$nnodes" --ntasks="$nnodes" --ntasks-per-node=1 --cpus-per-task="$cpus" \
        "${srun_options[@]}" "$@"
}
