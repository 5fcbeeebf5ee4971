# shellcheck shell=bash
# Slurm's srun as the launcher.

# The message that srun logs when it begins to end all tasks because one of them has failed.
readonly LAUNCH_IS_ENDING='^srun: .*Terminating StepId='

LAUNCH_REFUSALS+=(
    "^srun: (unrecognized option|invalid option|option '.*(requires|doesn't allow) an argument)"
    '^srun: error: Unable to create step for job .*: (More processors requested|Invalid generic)'
)

# srun_each_node SECONDS COMMAND...: run COMMAND once on each node, with this time limit (0: none).
# Replaces the shell in which it is called. (Each launcher file defines LAUNCHER_each_node.)
srun_each_node() {
    local limit=$1
    shift
    exec timeout --kill-after=5 "$limit" \
        srun --nodes="$nnodes" --ntasks="$nnodes" --ntasks-per-node=1 --cpus-per-task="$cpus" \
        "${gpu_options[@]}" "${srun_options[@]}" "$@"
}

# srun_node_by_node COMMAND...: run a job step on each node, all at the same time. NODE_RANK and
# PET_NODE_RANK contain the number of the node.
srun_node_by_node() {
    loop_over_nodes together srun_node 0 "$@"
}

# srun_node NUMBER SECONDS COMMAND...: run a job step on the node of this number. With a time limit
# it is a helper step; with 0 it has no time limit and gets all GPUs. Replaces the shell in which it
# is called. (Each launcher file defines LAUNCHER_node.)
srun_node() {
    local limit=() options=("${gpu_options[@]}")
    [ "$2" = 0 ] || limit=(timeout --kill-after=5 "$2") options=("${HELPER_OPTIONS[@]}")
    export NODE_RANK="$1" PET_NODE_RANK="$1"
    exec "${limit[@]}" srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task="$cpus" \
        "${options[@]}" "${srun_options[@]}" --nodelist="${nodes[$1]}" "${@:3}"
}
