# shellcheck shell=bash
# The ranks: how many run on each node, and their environment.

# plan_ranks [RANKS]: compute the number of ranks from gpus_per_node and nnodes. Each node runs
# SLIPWAY_RANKS_PER_NODE ranks, by default RANKS, or else as many as its GPUs suffice for. Sets
# devices_per_rank, ranks_per_node, world_size and cpus_per_rank (rounded down: threads beyond the
# cores only wait). Fails if there are too few GPUs.
plan_ranks() {
    devices_per_rank=${SLIPWAY_DEVICES_PER_RANK:-1}
    ranks_per_node=${SLIPWAY_RANKS_PER_NODE:-${1:-$((gpus_per_node / devices_per_rank))}}
    [ "$BACKEND" != single ] || ranks_per_node=1
    check_gpu_count
    ((ranks_per_node > 0)) ||
        die no-gpu \
            "the job was given ${gpus_per_node/#0/no} GPU, but a rank needs $devices_per_rank:" \
            "request GPUs from the scheduler, or set SLIPWAY_RANKS_PER_NODE and SLIPWAY_DEVICE=cpu"
    world_size=$((nnodes * ranks_per_node))
    refuse_mig_slices
    cpus_per_rank=$((cpus / ranks_per_node))
    ((cpus_per_rank > 0)) || cpus_per_rank=1
    log_idle_gpus
}

# check_gpu_count: if SLIPWAY_DEVICES_PER_RANK is set, fail if the ranks need more GPUs than the job
# was given. Does not apply to CPUs, whose cores pipeline stages share, nor to a job without GPUs:
# some schedulers do not manage GPUs, and the preflight checks them.
check_gpu_count() {
    local needed=$((devices_per_rank * (ranks_per_node > 0 ? ranks_per_node : 1)))
    [ -n "$SLIPWAY_DEVICES_PER_RANK" ] && [ "$SLIPWAY_DEVICE" != cpu ] && ((gpus_per_node > 0)) ||
        return 0
    ((needed <= gpus_per_node)) ||
        die too-few-gpus \
            "$((needed / devices_per_rank)) rank(s) a node with $devices_per_rank GPUs each need" \
            "$needed, but the job was given $gpus_per_node: request more from the scheduler, or" \
            "reduce SLIPWAY_DEVICES_PER_RANK or SLIPWAY_RANKS_PER_NODE"
}

# use_smallest_gpu_count COUNT...: handle nodes with different numbers of GPUs; each COUNT is that
# of one or more nodes, as far as the scheduler reports it. Sets gpus_per_node to the smallest
# COUNT, because steps request the same number on every node. Fails unless SLIPWAY_RANKS_PER_NODE,
# or a single process, needs no more than that.
use_smallest_gpu_count() {
    local count ranks=${SLIPWAY_RANKS_PER_NODE:-0} needed smallest=${1:-0} largest=${1:-0}
    for count in "$@"; do
        ((count >= smallest)) || smallest=$count
        ((count <= largest)) || largest=$count
    done
    [ "$smallest" != "$largest" ] || return 0
    [ "$BACKEND" != single ] || ranks=1
    needed=$((ranks * ${SLIPWAY_DEVICES_PER_RANK:-1}))
    [ "$SLIPWAY_DEVICE" != cpu ] || needed=0
    ((ranks > 0 && needed <= smallest)) ||
        die uneven-gpus \
            "one node of this job has $largest GPU(s), another one $smallest: request the same" \
            "number on each (Slurm: --gpus-per-node; PBS: chunks of one node each), or set" \
            "SLIPWAY_RANKS_PER_NODE to a number for which each node has enough GPUs"
    gpus_per_node=$smallest
    warn idle-gpus \
        "the nodes of this job have between $smallest and $largest GPU(s): the job uses" \
        "$smallest on each"
}

# refuse_mig_slices: fail if several ranks were given slices of GPUs (MIG). A process sees at most
# one slice, and NCCL before 2.32 cannot connect slices (NVIDIA's MIG User Guide, application
# considerations; user guide of NCCL 2.32, Using MIG instances).
refuse_mig_slices() {
    [[ ${CUDA_VISIBLE_DEVICES:-} == *MIG-* ]] && [ "$SLIPWAY_DEVICE" != cpu ] || return 0
    [ "$scheduler" != local ] || return 0 # count_ranks has used torch's own count
    ((world_size == 1)) ||
        die mig-slices \
            "the job was given MIG slices, but NCCL before 2.32 cannot connect $world_size ranks" \
            "on slices: request whole GPUs; \`jobgen submit single --site SITE\` uses one slice"
}

# log_idle_gpus: warn how many GPUs of each node no rank uses, and whether the ranks fit on fewer
# nodes. A user script with one process per node may start ranks itself.
log_idle_gpus() {
    local needed=$((devices_per_rank * ranks_per_node)) each advice
    [ "$SLIPWAY_DEVICE" != cpu ] && ((needed < gpus_per_node)) || return 0
    advice="SLIPWAY_DEVICES_PER_RANK=$devices_per_rank does not divide them"
    if [ "$BACKEND" = single ]; then
        advice="this job runs one process; request fewer GPUs from the scheduler"
    elif [ -n "$SLIPWAY_RANKS_PER_NODE" ]; then
        each=$((gpus_per_node / devices_per_rank))
        until ((world_size % each == 0)); do
            each=$((each - 1))
        done
        advice="SLIPWAY_RANKS_PER_NODE=$ranks_per_node uses $needed"
        ((each <= ranks_per_node)) ||
            advice+="; the $world_size ranks fit on $((world_size / each)) node(s) with $each"
    fi
    warn idle-gpus \
        "$((gpus_per_node - needed)) of $gpus_per_node GPUs of each node are idle: $advice"
}

# export_rank_environment: export the environment of all ranks: RUN_DIR, the job's name, the plan,
# the space that quotas leave in the run folder, and the variables of export_job_environment.
export_rank_environment() {
    local quota=''
    export_job_environment
    export_plan
    # `read` has a time limit: a program that hangs on a disk cannot be killed
    read -r -t 12 quota < <(sh "$lib/quota_left.sh" "$RUN_DIR") || :
    export_to_ranks \
        RUN_DIR="$RUN_DIR" \
        TRAINER_JOB_ID="$job_id" \
        TRAINER_QUOTA="$quota"
    [[ " ${bound_backends[*]:-} " != *" $BACKEND "* ]] ||
        export_to_ranks TRAINER_BOUND_GPUS="$devices_per_rank"
}

# export_plan: export this attempt's number and numbers of ranks. The ranks compare them with their
# actual values.
export_plan() {
    export_to_ranks \
        TRAINER_ATTEMPT="$attempt" \
        TRAINER_WORLD_SIZE="$world_size" \
        TRAINER_RANKS_PER_NODE="$ranks_per_node"
}

# export_job_environment: export the environment of every process of the job: DATA, GPUS_PER_NODE,
# DEVICES_PER_RANK, CPUS_PER_RANK, OMP_NUM_THREADS, and folders for caches and temporary files.
# These folders are in the scratch folder, which exists on every node and in the container. A TMPDIR
# from outside may not.
export_job_environment() {
    isolate_python
    if [ -n "${OMP_NUM_THREADS:-}" ] && [ "$OMP_NUM_THREADS" != "$cpus_per_rank" ]; then
        warn kept-variable \
            "OMP_NUM_THREADS=$OMP_NUM_THREADS was set outside and is kept; each rank has" \
            "$cpus_per_rank CPUs"
    fi
    [ -z "${TMPDIR:-}" ] ||
        log "temporary files are written to $scratch, on each node's SLIPWAY_LOCAL_DISK, not to" \
            "TMPDIR=$TMPDIR"
    export_to_ranks \
        OMP_NUM_THREADS="${OMP_NUM_THREADS:-$cpus_per_rank}" \
        DATA="$data" \
        GPUS_PER_NODE="$gpus_per_node" \
        DEVICES_PER_RANK="$devices_per_rank" \
        CPUS_PER_RANK="$cpus_per_rank" \
        TRITON_CACHE_DIR="$scratch/triton" \
        TORCHINDUCTOR_CACHE_DIR="$scratch/inductor" \
        CUDA_CACHE_PATH="$scratch/nv" \
        MIOPEN_USER_DB_PATH="$scratch/miopen" \
        MIOPEN_CUSTOM_CACHE_DIR="$scratch/miopen" \
        TMPDIR="$scratch"
}
