# shellcheck shell=bash
# The ranks: how many, what their environment holds, where they meet, and what they run.

: "${SLIPWAY_ADAPT:=1}"

# What runs a command on the head node, where this script is on another machine.
on_head_node=()

# count_items LIST: the number of elements of a list with commas.
count_items() {
    local list
    IFS=, read -r -a list <<<"$1"
    echo "${#list[@]}"
}

# plan_ranks [RANKS]: reads gpus_per_node, nnodes. RANKS start on each node unless
# SLIPWAY_RANKS_PER_NODE is set; by default as many as its GPUs suffice for. Sets devices_per_rank,
# ranks_per_node, world_size and cpus_per_rank (rounded down: threads beyond the cores only wait).
plan_ranks() {
    devices_per_rank=${SLIPWAY_DEVICES_PER_RANK:-1}
    ranks_per_node=${SLIPWAY_RANKS_PER_NODE:-${1:-$((gpus_per_node / devices_per_rank))}}
    [ "$BACKEND" != single ] || ranks_per_node=1
    check_gpu_count
    ((ranks_per_node > 0)) ||
        die no-gpu \
            "the job was given ${gpus_per_node/#0/no} GPU, and a rank needs $devices_per_rank:" \
            "ask the scheduler for GPUs, or set SLIPWAY_RANKS_PER_NODE and SLIPWAY_DEVICE=cpu"
    world_size=$((nnodes * ranks_per_node))
    refuse_mig_slices
    cpus_per_rank=$((cpus / ranks_per_node))
    ((cpus_per_rank > 0)) || cpus_per_rank=1
    log_idle_gpus
}

# check_gpu_count: where SLIPWAY_DEVICES_PER_RANK is set, fails if the ranks need more GPUs than the
# job was given. On CPUs stages share their cores. A job without GPUs is not counted: some
# schedulers do not know of them, and the preflight does.
check_gpu_count() {
    local needed=$((devices_per_rank * (ranks_per_node > 0 ? ranks_per_node : 1)))
    [ -n "$SLIPWAY_DEVICES_PER_RANK" ] && [ "$SLIPWAY_DEVICE" != cpu ] && ((gpus_per_node > 0)) ||
        return 0
    ((needed <= gpus_per_node)) ||
        die too-few-gpus \
            "$((needed / devices_per_rank)) rank(s) a node with $devices_per_rank GPUs each need" \
            "$needed, and the job was given $gpus_per_node: ask the scheduler for more, or lower" \
            "SLIPWAY_DEVICES_PER_RANK or SLIPWAY_RANKS_PER_NODE"
}

# use_smallest_gpu_count COUNT...: GPUs of each node of the job, as far as the scheduler says. Where
# they differ, sets gpus_per_node to the smallest, as steps ask every node for so many; and fails
# unless SLIPWAY_RANKS_PER_NODE, or one process, needs no more than that.
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
            "a node of this job has $largest GPU(s), and another one $smallest: ask for as many" \
            "on each (Slurm: --gpus-per-node; PBS: chunks of one node each), or set" \
            "SLIPWAY_RANKS_PER_NODE to a number for which those of each node suffice"
    gpus_per_node=$smallest
    warn idle-gpus \
        "nodes of this job have from $smallest to $largest GPU(s): each counts as one with" \
        "$smallest"
}

# refuse_mig_slices: fails where several ranks were given slices of GPUs. A process sees one slice
# at most, and NCCL connects none (NVIDIA's MIG User Guide, application considerations).
refuse_mig_slices() {
    [[ ${CUDA_VISIBLE_DEVICES:-} == *MIG-* ]] && [ "$SLIPWAY_DEVICE" != cpu ] || return 0
    [ "$scheduler" != local ] || return 0 # there torch has counted them
    ((world_size == 1)) ||
        die mig-slices \
            "the job was given MIG slices, and NCCL cannot connect $world_size ranks on slices:" \
            "ask for whole GPUs; \`jobgen submit single --site SITE\` takes one slice"
}

# log_idle_gpus: say how many GPUs of each node no rank takes, and where the ranks fit on fewer
# nodes. One process a node of a user's script may start ranks of its own.
log_idle_gpus() {
    local needed=$((devices_per_rank * ranks_per_node)) each advice
    [ "$SLIPWAY_DEVICE" != cpu ] && ((needed < gpus_per_node)) || return 0
    advice="SLIPWAY_DEVICES_PER_RANK=$devices_per_rank does not divide them"
    if [ "$BACKEND" = single ]; then
        advice="this is one process; ask the scheduler for fewer"
    elif [ -n "$SLIPWAY_RANKS_PER_NODE" ]; then
        each=$((gpus_per_node / devices_per_rank))
        until ((world_size % each == 0)); do
            each=$((each - 1))
        done
        advice="SLIPWAY_RANKS_PER_NODE=$ranks_per_node takes $needed"
        ((each <= ranks_per_node)) ||
            advice+="; the $world_size ranks fit on $((world_size / each)) node(s) with $each"
    fi
    warn idle-gpus \
        "$((gpus_per_node - needed)) of $gpus_per_node GPUs of each node stay idle: $advice"
}

# export_rank_environment: what all ranks get, wherever they run. Exports RUN_DIR, the plan, what
# quotas leave in the run folder, and what export_job_environment exports.
export_rank_environment() {
    local quota=''
    export_job_environment
    export_plan
    # read does not wait for a program that cannot be killed
    read -r -t 12 quota < <(sh "$lib/quota_left.sh" "$RUN_DIR") || :
    export_to_ranks \
        RUN_DIR="$RUN_DIR" \
        TRAINER_JOB_ID="$job_id" \
        TRAINER_QUOTA="$quota"
    [[ " ${bound_backends[*]:-} " != *" $BACKEND "* ]] ||
        export_to_ranks TRAINER_BOUND_GPUS="$devices_per_rank"
}

# export_plan: of this attempt, which the ranks compare with what they find.
export_plan() {
    export_to_ranks \
        TRAINER_ATTEMPT="$attempt" \
        TRAINER_WORLD_SIZE="$world_size" \
        TRAINER_RANKS_PER_NODE="$ranks_per_node"
}

# export_job_environment: what every process of the job gets. Exports DATA, GPUS_PER_NODE,
# DEVICES_PER_RANK, CPUS_PER_RANK, OMP_NUM_THREADS, and folders on the local disk for caches and
# temporary files: every node has made those, and the container sees them. No TMPDIR that was set
# outside is sure to be either.
export_job_environment() {
    isolate_python
    if [ -n "${OMP_NUM_THREADS:-}" ] && [ "$OMP_NUM_THREADS" != "$cpus_per_rank" ]; then
        warn kept-variable \
            "OMP_NUM_THREADS=$OMP_NUM_THREADS was set outside and is kept; there are" \
            "$cpus_per_rank CPUs for each rank"
    fi
    [ -z "${TMPDIR:-}" ] ||
        log "temporary files go to $scratch, on SLIPWAY_LOCAL_DISK of each node, not to" \
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

# choose_rendezvous: where the ranks meet. Exports MASTER_ADDR, of which yours wins; the preflight
# tries it from each node.
choose_rendezvous() {
    port_is_given=${MASTER_PORT:+1}
    given_address=${MASTER_ADDR:-}
    rendezvous=1
    if [ -n "$port_is_given" ]; then
        [[ $MASTER_PORT =~ ^[1-9][0-9]{3,4}$ ]] && ((MASTER_PORT > 1023 && MASTER_PORT < 65536)) ||
            die bad-value "MASTER_PORT is ${MASTER_PORT@Q}: it must be a port from 1024 to 65535"
    fi
    [ -z "$given_address" ] ||
        warn kept-variable "MASTER_ADDR=$given_address was set outside and is kept"
    head_is_tried=1
    find_master_address
}

# find_master_address: an address of the head node at which the others reach it. Exports
# MASTER_ADDR; sets master_is_found. While head_is_tried is set, also lets the head node listen, for
# the preflight. Fails in a restart (fail_without_master).
find_master_address() {
    local addresses=("$given_address")
    [ -n "$given_address" ] ||
        mapfile -t addresses < <(getent ahosts "$head_node" | awk '!seen[$1]++ { print $1 }')
    MASTER_ADDR=${addresses[0]:-}
    [ -n "$MASTER_ADDR" ] || \
        fail_without_master "$head_node has no address here: set MASTER_ADDR" || return 1
    [ "$nnodes" = 1 ] || choose_address "${addresses[@]}" || return 1
    export_to_ranks MASTER_ADDR="$MASTER_ADDR"
    master_is_found=1
}

# fail_without_master MESSAGE: ends the job; fails in a restart, as a node may have died once more.
fail_without_master() {
    [ "${restarts:-0}" != 0 ] || die no-master-address "$@"
    error no-master-address "$@"
    return 1
}

# choose_address ADDRESS...: of the head node, in the order in which its name is resolved; one that
# was set outside stays. Sets MASTER_ADDR; exports TRAINER_MEETING, for try_head.py. Fails if all
# are loopback, link-local, or of a bridge that leads nowhere.
choose_address() {
    local address token='' run=run_for_answer first=${MASTER_PORT:-$first_port} count=0 found=()
    for address in "$@"; do
        [[ $address =~ ^(localhost|127\..*|::1)$ ]] || found+=("$address")
    done
    [ ${#found[@]} != 0 ] ||
        fail_without_master "the head node $head_node is $1 to itself, which no other node can" \
            "reach: set" \
            "MASTER_ADDR, or have it fixed" || return 1
    if [ -n "${head_is_tried:-}" ]; then
        run=start_server count=2000 token=$(random_name)
        [ -z "$port_is_given" ] || count=1
    elif [ -n "$given_address" ]; then
        return 0
    fi
    "$run" 60 head_address.py "$token" "$first" "$count" "$given_address" "${found[@]}" ||
        fail_without_master "the head node $head_node does not look at its network$step_failure" ||
            return 1
    case ${answer[0]:-} in
        address) ;;
        taken)
            die no-free-port \
                "no port from $first to $((first + count - 1)) is free on $head_node: set" \
                "MASTER_PORT"
            ;;
        *)
            fail_without_master \
                "no other node can reach $head_node: ${answer[1]:-${answer[*]@Q}}: set MASTER_ADDR"
            return 1
            ;;
    esac
    [[ " ${found[*]} " == *" ${answer[1]:-} "* ]] ||
        fail_without_master "$head_node has no address ${answer[*]@Q}: set MASTER_ADDR" || return 1
    MASTER_ADDR=${answer[1]}
    [ "$count" = 0 ] || export_probe_address "$token" "${answer[2]:-}"
}

# export_probe_address TOKEN PORT: where the head node listens, for the preflight.
export_probe_address() {
    answer=("$2")
    answer_is_port ||
        die no-master-address \
            "the head node $head_node does not listen$step_failure: set MASTER_ADDR"
    export_to_ranks TRAINER_MEETING="$2 $1"
}

# open_rendezvous: right before a launch, so that nobody else takes the port meanwhile. Exports
# MASTER_PORT, of which yours wins; or, for Horovod, where its rendezvous server listens; and, in a
# restart, MASTER_ADDR. Fails, and says why, if the head node does not do its part.
open_rendezvous() {
    [ "${rendezvous:-0}" = 1 ] || return 0
    [ -n "$master_is_found" ] || find_master_address || return 1
    case $BACKEND in
        ddp) choose_port "$first_port" ;;
        horovod) start_horovod_server ;;
    esac
}

# log_ranks: one line for the log: how many ranks, on which nodes, and where they meet unless MPI
# sees to that.
log_ranks() {
    local line="$world_size rank(s), $ranks_per_node on each of $nnodes node(s)"
    line+=" ($(join_by ', ' "${nodes[@]:0:8}")${nodes[8]:+, ...})"
    if [ "${rendezvous:-0}" = 1 ]; then
        case $BACKEND in
            ddp) line+=", rendezvous at $MASTER_ADDR:$MASTER_PORT" ;;
            horovod) line+=", rendezvous at $MASTER_ADDR:$HOROVOD_GLOO_RENDEZVOUS_PORT" ;;
        esac
    fi
    log "$line"
}

# choose_port FIRST: MASTER_PORT, the first one from there on that can be bound on the head node,
# unless it is given.
choose_port() {
    if [ -z "$port_is_given" ]; then
        run_for_answer 60 free_port.py "$1" && answer_is_port || {
            error no-free-port "no free port was found on $head_node$step_failure"
            return 1
        }
        export_to_ranks MASTER_PORT="${answer[0]}"
    fi
}

# answer_is_port: whether it is the number of one, and nothing else; sets step_failure if not.
answer_is_port() {
    [[ ${answer[*]} =~ ^[1-9][0-9]{0,4}$ ]] && ((answer[0] < 65536)) ||
        { step_failure=": ${answer[*]@Q} is no port" && return 1; }
}

# start_horovod_server: Horovod's own rendezvous server, on the head node, until the script ends; no
# MPI is needed.
start_horovod_server() {
    start_server 120 horovod_server.py "$MASTER_ADDR" "$nnodes" "$ranks_per_node" &&
        answer_is_port || {
        error no-rendezvous "Horovod's rendezvous server did not start$step_failure"
        return 1
    }
    export_to_ranks \
        HOROVOD_CONTROLLER=gloo \
        HOROVOD_CPU_OPERATIONS=gloo \
        HOROVOD_GLOO_RENDEZVOUS_ADDR="$MASTER_ADDR" \
        HOROVOD_GLOO_RENDEZVOUS_PORT="${answer[0]}" \
        HOROVOD_GLOO_IFACE="${GLOO_SOCKET_IFNAME:-}" \
        HOROVOD_GLOO_TIMEOUT_SECONDS="${HOROVOD_GLOO_TIMEOUT_SECONDS:-600}" \
        HOROVOD_SIZE="$world_size" \
        HOROVOD_LOCAL_SIZE="$ranks_per_node" \
        HOROVOD_CROSS_SIZE="$nnodes"
}

# check_mpi COMMAND...: what starts the ranks, in its own words, for the preflight, which compares
# it with their MPI.
check_mpi() {
    local output
    [ "$1" != mpirun ] || refuse_root
    capture_program_output 60 sh -c 'exec "$@" 2>&1' - "$@" ||
        die no-mpi \
            "no MPI answers on $HOSTNAME${step_failure/#: see above/: load its module}, or" \
            "\`jobgen submit horovod-gloo --site SITE\`, which needs none; $1 printed: $output"
    # Containers of an ordinary user cannot read each other's memory: without these the first large
    # message hangs.
    export_to_ranks \
        TRAINER_MPI="${output//$'\n'/ }" \
        OMPI_MCA_btl_vader_single_copy_mechanism=none \
        OMPI_MCA_smsc=^cma
}

# choose_program ARGUMENT...: what each rank runs. Sets program, words for python3 or torchrun, and
# trainer_arguments.
choose_program() {
    program=()
    [ -z "${SLIPWAY_PROFILER:-}" ] || program=("$lib/profile_rank.py")
    if [ -n "$SLIPWAY_SCRIPT" ]; then
        program+=("$SLIPWAY_SCRIPT" "$@")
        # Python imports sitecustomize.py from there.
        [ "$SLIPWAY_ADAPT" = 0 ] ||
            export_to_ranks PYTHONPATH="$lib${PYTHONPATH:+:$PYTHONPATH}"
        # Without it Accelerate's ranks on CPUs do not join: each trains alone, and exits with 0.
        [ "$SLIPWAY_DEVICE" != cpu ] ||
            export_to_ranks ACCELERATE_USE_CPU="${ACCELERATE_USE_CPU:-true}"
        return
    fi
    export_to_ranks PYTHONSAFEPATH=1 # the folder of submission may hold another trainer.py
    trainer_arguments=(
        "$SLIPWAY_CONFIG" --backend "$BACKEND" --device "$SLIPWAY_DEVICE"
        --output-dir "$RUN_DIR" --resume auto
    )
    [ -z "$data" ] || trainer_arguments+=(--data-dir "$data")
    [ -z "$SLIPWAY_DEVICES_PER_RANK" ] ||
        trainer_arguments+=(--devices-per-rank "$devices_per_rank")
    trainer_arguments+=("$@")
    program+=(-m trainer "${trainer_arguments[@]}")
}

# preflight: a short step on every node that finds what would go wrong in the launch, and says it in
# a line.
preflight() {
    local check
    check_packages
    check_entry_point
    if [ -n "$SLIPWAY_SCRIPT" ]; then
        check=(sh "$lib/preflight.sh" "$SLIPWAY_DEVICE" "${bind_paths[@]}" ${data:+"$data"})
    else
        check=(python3 -m trainer.launch.preflight "${trainer_arguments[@]}")
    fi
    [ -z "${TRAINER_MEETING:-}" ] || check=(python3 "$lib/try_head.py" "${check[@]}")
    step_on_each_node 0 "${container[@]}" "${check[@]}" ||
        die node-not-ready "not every node was ready$step_failure"
    head_is_tried=''
    stop_server
    unset -v TRAINER_MEETING
    choose_numa_binding
    check_profiler
}

# choose_numa_binding: sets numa_options, of torchrun, by numa_binding of the site's file. None for
# ranks on CPUs, which torch cannot bind, and for several GPUs a rank, as torchrun binds rank N next
# to GPU N. Fails if numactl, without which torchrun ends every rank, does not run on every node.
choose_numa_binding() {
    numa_options=()
    [ -n "${numa_binding:-}" ] && [ "$BACKEND" = ddp ] || return 0
    [ "$SLIPWAY_DEVICE" != cpu ] && [ "$SLIPWAY_DEVICE:$gpus_per_node" != auto:0 ] || return 0
    if [ "${devices_per_rank:-1}" != 1 ]; then
        log "ranks have several GPUs: they are not bound to cores (numa_binding)"
        return
    fi
    step_on_each_node 0 "${container[@]}" numactl --physcpubind=+0 true ||
        die no-numactl \
            "numa_binding: the program numactl does not run on every node$step_failure; it must" \
            "be there: in the image, or on the node with USE_CONTAINER=0"
    numa_options=(--numa-binding="$numa_binding")
}

# check_profiler: fails if SLIPWAY_PROFILER is not where the ranks will run.
check_profiler() {
    [ -z "${SLIPWAY_PROFILER:-}" ] ||
        step_on_each_node 0 "${container[@]}" "$SLIPWAY_PROFILER" --version ||
        die no-profiler \
            "SLIPWAY_PROFILER=$SLIPWAY_PROFILER does not run on every node$step_failure; it must" \
            "be on PATH there: in the image, or by a module with USE_CONTAINER=0"
}
