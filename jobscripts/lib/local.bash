# shellcheck shell=bash
# No scheduler: the job runs on this machine.

source "${BASH_SOURCE[0]%/*}/job.bash"

readonly SCHEDULER_COMMANDS=()
readonly RANKS_ON_CPU=2 # the smallest number with which ranks communicate

# choose_container: if USE_CONTAINER is empty, choose the image if the container runtime can run it,
# otherwise the virtual environment. Sets USE_CONTAINER.
choose_container() {
    [ -z "$USE_CONTAINER" ] || return 0
    USE_CONTAINER=0
    if ! image_is_name && [ ! -r "$SLIPWAY_IMAGE" ]; then
        warn no-image "no $SLIPWAY_IMAGE: using $SLIPWAY_VENV; \`make image\` builds an image"
    elif ! image_runs; then
        warn no-image \
            "$container_runtime cannot run $SLIPWAY_IMAGE here (see above): using $SLIPWAY_VENV"
    else
        USE_CONTAINER=1
        log "using $SLIPWAY_IMAGE; USE_CONTAINER=0 uses $SLIPWAY_VENV"
    fi
}

# find_allocation: describe this machine as the only node. Sets nodes, nnodes, head_node, cpus,
# scratch_id and first_port; and gpus_per_node, for `jobgen shell`, which starts no ranks. (Each
# scheduler file defines it.)
find_allocation() {
    nodes=(127.0.0.1)
    reserve_spares
    cpus=$(nproc)
    gpus_per_node=${SLIPWAY_DEVICES_PER_RANK:-1}
    scratch_id=$job_id
    first_port=$((20000 + $$ % 10000))
}

# count_ranks: choose the number of ranks: SLIPWAY_RANKS_PER_NODE, or else one for each GPU (or each
# SLIPWAY_DEVICES_PER_RANK GPUs) that torch in the image or environment can use, or RANKS_ON_CPU
# without such GPUs. Sets gpus_per_node, the number of GPUs that the ranks use, and what plan_ranks
# sets. Fails if the ranks need more GPUs than there are, or if torch cannot use the machine's GPUs.
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

# count_gpus: count the GPUs that torch can use where the ranks will run. Sets gpus, and why:
# torch's version, or the reason why there are none.
count_gpus() {
    isolate_python
    run_for_answer 60 count_gpus.py ||
        die broken-gpu \
            "the GPUs of this machine cannot be counted$step_failure; if the driver hangs (see" \
            "nvidia-smi), set SLIPWAY_DEVICE=cpu to run without them"
    [ ${#answer[@]} = 2 ] && [[ ${answer[0]} =~ ^(0|[1-9][0-9]{0,3})$ ]] ||
        die broken-gpu \
            "the GPUs of this machine cannot be counted: count_gpus.py returned ${answer[*]@Q}"
    gpus=${answer[0]} why=${answer[1]//[[:cntrl:]]/ }
}

# job_has_ended JOB: return 0 if the process whose number is the end of the job's name has ended or
# the number now belongs to another process, 1 if it runs. (Each scheduler file defines it.)
job_has_ended() {
    local pid=${1##*-}
    [ "$pid" = $$ ] ||
        ! grep --quiet --null-data --extended-regexp "(^|/)(job\.sh|$script_name)$" \
            "/proc/$pid/cmdline" 2>/dev/null
}

# handle_stop_signal: forward Ctrl-C, SIGTERM or SIGHUP to the ranks, which save and end. (Each
# scheduler file defines it.)
handle_stop_signal() {
    signal_launch
}

# watch_time_limit: do nothing, because there is no time limit. (Each scheduler file defines it.)
watch_time_limit() {
    :
}

# resubmit METHOD: return 1, because there is no queue. (Each scheduler file defines it.)
resubmit() {
    return 1
}

# continue_command: print the shell command that continues the run. (Each scheduler file defines
# it.)
continue_command() {
    printf 'bash %q\n' "$RUN_DIR/job.sh"
}
