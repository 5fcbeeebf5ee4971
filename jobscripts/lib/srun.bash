# shellcheck shell=bash
# Slurm's srun as what starts processes on the nodes.

# What it says when it begins to end all tasks, as one of them has failed.
readonly LAUNCH_IS_ENDING='^srun: .*Terminating StepId='

LAUNCH_REFUSALS+=(
    "^srun: (unrecognized option|invalid option|option '.*(requires|doesn't allow) an argument)"
    '^srun: error: Unable to create step for job .*: (More processors requested|Invalid generic)'
)

# srun_each_node SECONDS COMMAND...: once on each node, for at most so long.
srun_each_node() {
    local limit=$1
    shift
    exec timeout --kill-after=5 "$limit" \
        srun --nodes="$nnodes" --ntasks="$nnodes" --ntasks-per-node=1 --cpus-per-task="$cpus" \
        "${srun_options[@]}" "$@"
}

# srun_node_by_node COMMAND...: a step for each node, all at the same time, with the number of the
# node in NODE_RANK and PET_NODE_RANK.
srun_node_by_node() {
    for_each_node together srun_node 0 "$@"
}

# srun_node NUMBER SECONDS COMMAND...: a step on the node of that number, for at most so long; 0:
# without a time limit.
srun_node() {
    local limit=()
    [ "$2" = 0 ] || limit=(timeout --kill-after=5 "$2")
    export NODE_RANK="$1" PET_NODE_RANK="$1"
    exec "${limit[@]}" srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task="$cpus" \
        "${srun_options[@]}" --nodelist="${nodes[$1]}" "${@:3}"
}
