# shellcheck shell=bash
# No scheduler: this machine.

source "${BASH_SOURCE[0]%/*}/job.bash"

readonly SCHEDULER_COMMANDS=()
readonly RANKS_ON_CPU=2 # enough to show that ranks train together

# choose_container: with USE_CONTAINER unset, the image if there is one that Apptainer can run, else
# the environment.
choose_container() {
    [ -z "$USE_CONTAINER" ] || return 0
    USE_CONTAINER=0
    if [ ! -r "$SLIPWAY_IMAGE" ]; then
        warn no-image "no $SLIPWAY_IMAGE, so in $SLIPWAY_VENV; \`make image\` builds one"
    elif ! image_runs; then
        warn no-image \
            "$container_runtime cannot run $SLIPWAY_IMAGE here (see above), so in $SLIPWAY_VENV"
    else
        USE_CONTAINER=1
        log "in $SLIPWAY_IMAGE; USE_CONTAINER=0 runs in $SLIPWAY_VENV"
    fi
}

# find_allocation: this machine. Sets nodes, nnodes, head_node, cpus, scratch_id, first_port; and
# gpus_per_node, for a session that starts no ranks.
find_allocation() {
    nodes=(127.0.0.1)
    reserve_spares
    cpus=$(nproc)
    gpus_per_node=${SLIPWAY_DEVICES_PER_RANK:-1}
    scratch_id=$job_id
    first_port=$((20000 + $$ % 10000))
}

# count_ranks: one for each GPU (for each SLIPWAY_DEVICES_PER_RANK of them) that the torch of the
# image or environment can use, RANKS_ON_CPU if it can use none; SLIPWAY_RANKS_PER_NODE wins. Sets
# gpus_per_node, those that the ranks take, and what plan_ranks sets. Fails if the ranks need more
# GPUs than there are, or torch cannot use those that are there.
count_ranks() {
    local gpus=0 why=SLIPWAY_DEVICE=cpu each=${SLIPWAY_DEVICES_PER_RANK:-1} ranks fewer
    gpus_per_node=0
    [ "$SLIPWAY_DEVICE" = cpu ] || count_gpus
    if [ "$gpus" = 0 ]; then
        [ "$SLIPWAY_DEVICE" != cuda ] ||
            die no-gpu "SLIPWAY_DEVICE=cuda, but $why; SLIPWAY_DEVICE=cpu runs without GPUs"
        plan_ranks "$RANKS_ON_CPU"
        log "$(plural "$ranks_per_node" rank) on the CPU: $why"
        return
    fi
    ranks=${SLIPWAY_RANKS_PER_NODE:-$((gpus < each ? 1 : gpus / each))}
    [ "$BACKEND" != single ] || ranks=1
    gpus_per_node=$((ranks * each))
    if ((gpus_per_node > gpus)); then
        fewer=SLIPWAY_RANKS_PER_NODE=$((gpus / each))
        ((each <= gpus)) || fewer=SLIPWAY_DEVICES_PER_RANK=$gpus
        die too-few-gpus \
            "$(plural "$ranks" rank) with $(plural "$each" GPU) each need $gpus_per_node, and" \
            "$gpus can be used here ($why): set $fewer, or SLIPWAY_DEVICE=cpu"
    fi
    plan_ranks
    log "$(plural "$ranks" rank) on $gpus_per_node of $(plural "$gpus" GPU): $why"
}

# count_gpus: sets gpus, how many torch can use where the ranks will run, and why, which torch that
# is, or why there are none.
count_gpus() {
    isolate_python
    run_for_answer 60 count_gpus.py ||
        die broken-gpu \
            "the GPUs of this machine cannot be counted$step_failure; SLIPWAY_DEVICE=cpu leaves" \
            "them alone, should the driver hang (see nvidia-smi)"
    [ ${#answer[@]} = 2 ] && [[ ${answer[0]} =~ ^(0|[1-9][0-9]{0,3})$ ]] ||
        die broken-gpu \
            "the GPUs of this machine cannot be counted: count_gpus.py left ${answer[*]@Q}"
    gpus=${answer[0]} why=${answer[1]//[[:cntrl:]]/ }
}

# set_nodes NODE: this one.
set_nodes() {
    nodes=("$@") nnodes=$# head_node=$1
}

# job_has_ended JOB: whether the process that its name ends with is gone, or is another one by now.
job_has_ended() {
    local pid=${1##*-}
    [ "$pid" = $$ ] ||
        ! grep --quiet --null-data --extended-regexp "(^|/)(job\.sh|$script_name)$" \
            "/proc/$pid/cmdline" 2>/dev/null
}

# Ctrl-C, SIGTERM and SIGHUP are for the ranks: they save, then end.
handle_stop_signal() {
    signal_launch
}

# watch_time_limit: there is none.
watch_time_limit() {
    :
}

# There is no queue to go back to.
resubmit() {
    return 1
}

# The command that continues the run, as one types it.
continue_command() {
    printf 'bash %q\n' "$RUN_DIR/job.sh"
}
