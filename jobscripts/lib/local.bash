# shellcheck shell=bash
# No scheduler: this machine.

source "${BASH_SOURCE[0]%/*}/job.bash"

readonly SCHEDULER_COMMANDS=()

# choose_container: with USE_CONTAINER unset, the image if there is one that Apptainer can run, else
# the environment.
choose_container() {
    [ -z "$USE_CONTAINER" ] || return 0
    USE_CONTAINER=0
    if [ ! -r "$SLIPWAY_IMAGE" ]; then
        note "no $SLIPWAY_IMAGE, so in $SLIPWAY_VENV; \`make image\` builds one"
    elif ! image_runs; then
        note "$container_runtime cannot run $SLIPWAY_IMAGE here (see above), so in $SLIPWAY_VENV"
    else
        USE_CONTAINER=1
        note "in $SLIPWAY_IMAGE; USE_CONTAINER=0 runs in $SLIPWAY_VENV"
    fi
}

# find_allocation: this machine. Sets nodes, nnodes, head_node, cpus, ranks_per_node, world_size,
# gpus_per_node (those that the ranks take), first_port.
find_allocation() {
    nodes=(127.0.0.1)
    reserve_spares
    cpus=$(nproc)
    gpus_per_node=$((${SLIPWAY_RANKS_PER_NODE:-1} * ${SLIPWAY_DEVICES_PER_RANK:-1}))
    scratch_id=$job_id
    first_port=$((20000 + $$ % 10000))
    plan_ranks
}

# use_nodes NODE: this one.
use_nodes() {
    nodes=("$@") nnodes=$# head_node=$1
}

# job_is_over JOB: whether the process that its name ends with is gone, or is another one by now.
job_is_over() {
    local pid=${1##*-}
    [ "$pid" = $$ ] ||
        ! grep --quiet --null-data --extended-regexp "(^|/)(job\.sh|$script_name)$" \
            "/proc/$pid/cmdline" 2>/dev/null
}

# Ctrl-C and SIGTERM are for the ranks: they save, then end.
stop_for_signal() {
    signal_launch
}

# watch_time_limit: there is none.
watch_time_limit() {
    :
}

# There is no queue to go back to.
again() {
    return 1
}

# The command that continues the run, as one types it.
continue_command() {
    printf 'bash %q\n' "$RUN_DIR/job.sh"
}
