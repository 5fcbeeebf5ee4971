# shellcheck shell=bash
# The ranks: how many, their environment, their rendezvous, and the program that they run.

: "${SLIPWAY_ADAPT:=1}"

# The command prefix that runs a command on the first node, if this script is on another machine.
on_head_node=()

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
# one slice, and NCCL cannot connect slices (NVIDIA's MIG User Guide, application considerations).
refuse_mig_slices() {
    [[ ${CUDA_VISIBLE_DEVICES:-} == *MIG-* ]] && [ "$SLIPWAY_DEVICE" != cpu ] || return 0
    [ "$scheduler" != local ] || return 0 # count_ranks has used torch's own count
    ((world_size == 1)) ||
        die mig-slices \
            "the job was given MIG slices, but NCCL cannot connect $world_size ranks on slices:" \
            "request whole GPUs; \`jobgen submit single --site SITE\` uses one slice"
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

# choose_rendezvous: choose the address at which the ranks meet. Exports MASTER_ADDR; a value from
# the environment is kept. The preflight connects to it from each node. Sets port_is_given,
# given_address, rendezvous and first_node_is_probed. Fails if MASTER_PORT is invalid.
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
    first_node_is_probed=1
    find_master_address
}

# find_master_address: find an address of the first node that the other nodes can reach. Exports
# MASTER_ADDR; sets master_address_is_found. If first_node_is_probed is set, also starts a server on
# the first node for the preflight. Ends the job without an address; in a restart, returns 1
# (fail_without_master).
find_master_address() {
    local addresses=("$given_address")
    [ -n "$given_address" ] ||
        mapfile -t addresses < <(getent ahosts "$head_node" | awk '!seen[$1]++ { print $1 }')
    MASTER_ADDR=${addresses[0]:-}
    [ -n "$MASTER_ADDR" ] || \
        fail_without_master "cannot resolve the name $head_node: set MASTER_ADDR" || return 1
    [ "$nnodes" = 1 ] || choose_address "${addresses[@]}" || return 1
    export_to_ranks MASTER_ADDR="$MASTER_ADDR"
    master_address_is_found=1
}

# fail_without_master MESSAGE: end the job; in a restart, log the error and return 1, because
# another node may have died.
fail_without_master() {
    [ "${restarts:-0}" != 0 ] || die no-master-address "$@"
    error no-master-address "$@"
    return 1
}

# choose_address ADDRESS...: choose one of the first node's addresses, which are in the order of
# name resolution. An address from the environment is kept. Sets MASTER_ADDR; exports
# TRAINER_PROBE_ADDRESS, for try_head.py. Fails if all addresses are loopback, link-local or of a
# bridge without an uplink.
choose_address() {
    local address token='' run=run_for_answer first=${MASTER_PORT:-$first_port} count=0 found=()
    for address in "$@"; do
        [[ $address =~ ^(localhost|127\..*|::1)$ ]] || found+=("$address")
    done
    [ ${#found[@]} != 0 ] ||
        fail_without_master "the name of the first node, $head_node, resolves to $1, which other" \
            "nodes cannot reach: set" \
            "MASTER_ADDR, or have the name resolution fixed" || return 1
    if [ -n "${first_node_is_probed:-}" ]; then
        run=start_server count=2000 token=$(random_name)
        [ -z "$port_is_given" ] || count=1
    elif [ -n "$given_address" ]; then
        return 0
    fi
    "$run" 60 head_address.py "$token" "$first" "$count" "$given_address" "${found[@]}" ||
        fail_without_master "cannot read the network of the first node $head_node$step_failure" ||
            return 1
    case ${answer[0]:-} in
        address) ;;
        taken)
            die no-free-port \
                "no port from $first to $((first + count - 1)) is free on $head_node: set" \
                "MASTER_PORT to a free one"
            ;;
        *)
            fail_without_master \
                "other nodes cannot reach $head_node: ${answer[1]:-${answer[*]@Q}}: set MASTER_ADDR"
            return 1
            ;;
    esac
    [[ " ${found[*]} " == *" ${answer[1]:-} "* ]] ||
        fail_without_master "$head_node has no address ${answer[*]@Q}: set MASTER_ADDR" || return 1
    MASTER_ADDR=${answer[1]}
    [ "$count" = 0 ] || export_probe_address "$token" "${answer[2]:-}"
}

# export_probe_address TOKEN PORT: export the port at which the first node listens for the
# preflight. Fails if PORT is invalid.
export_probe_address() {
    answer=("$2")
    answer_is_port ||
        die no-master-address \
            "the first node $head_node does not listen$step_failure: set MASTER_ADDR"
    export_to_ranks TRAINER_PROBE_ADDRESS="$2 $1"
}

# open_rendezvous: choose the rendezvous port directly before a launch, so that no other process
# takes it in between. Exports MASTER_PORT, keeping a value from the environment, or the address of
# Horovod's rendezvous server; in a restart also MASTER_ADDR. Returns 1, and logs why, if that
# fails.
open_rendezvous() {
    [ "${rendezvous:-0}" = 1 ] || return 0
    [ -n "$master_address_is_found" ] || find_master_address || return 1
    case $BACKEND in
        ddp) choose_port ;;
        horovod) start_horovod_server ;;
    esac
}

# log_ranks: log the number of ranks, their nodes, and the rendezvous address unless MPI connects
# the ranks.
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

# choose_port: find the first port from first_port on that can be bound on the first node. Exports
# MASTER_PORT, unless it is given. Fails if no port is free.
choose_port() {
    [ -z "$port_is_given" ] || return 0
    run_for_answer 60 free_port.py "$first_port" && answer_is_port || {
        error no-free-port "found no free port on $head_node$step_failure"
        return 1
    }
    export_to_ranks MASTER_PORT="${answer[0]}"
}

# answer_is_port: return 0 if the answer is a port number and nothing else. Sets step_failure if
# not.
answer_is_port() {
    [[ ${answer[*]} =~ ^[1-9][0-9]{0,4}$ ]] && ((answer[0] < 65536)) ||
        { step_failure=": ${answer[*]@Q} is not a port" && return 1; }
}

# start_horovod_server: start Horovod's own rendezvous server on the first node, until the script
# ends. It does not need MPI. Exports the variables by which Horovod's ranks find it. Fails if it
# does not start.
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

# check_mpi COMMAND...: run a command that prints the version of the MPI that starts the ranks.
# Exports TRAINER_MPI, its output, which the preflight compares with the MPI of the ranks. Fails if
# the command does.
check_mpi() {
    local output
    [ "$1" != mpirun ] || refuse_root
    capture_program_output 60 sh -c 'exec "$@" 2>&1' - "$@" ||
        die no-mpi \
            "MPI does not work on $HOSTNAME${step_failure/#: see above/: load its module}, or use" \
            "\`jobgen submit horovod-gloo --site SITE\`, without MPI; $1 printed: $output"
    # Processes in separate unprivileged containers cannot read each other's memory. Without these
    # variables Open MPI's first large message hangs.
    export_to_ranks \
        TRAINER_MPI="${output//$'\n'/ }" \
        OMPI_MCA_btl_vader_single_copy_mechanism=none \
        OMPI_MCA_smsc=^cma
}

# choose_program ARGUMENT...: choose the program of each rank. Sets program, the arguments of
# python3 or torchrun, and trainer_arguments.
choose_program() {
    program=()
    [ -z "${SLIPWAY_PROFILER:-}" ] || program=("$lib/profile_rank.py")
    if [ -n "$SLIPWAY_SCRIPT" ]; then
        program+=("$SLIPWAY_SCRIPT" "$@")
        # Python imports sitecustomize.py from this folder.
        [ "$SLIPWAY_ADAPT" = 0 ] ||
            export_to_ranks PYTHONPATH="$lib${PYTHONPATH:+:$PYTHONPATH}"
        # Without this variable Accelerate's ranks on CPUs form no group: each one trains
        # independently and exits with 0.
        [ "$SLIPWAY_DEVICE" != cpu ] ||
            export_to_ranks ACCELERATE_USE_CPU="${ACCELERATE_USE_CPU:-true}"
        return
    fi
    export_to_ranks PYTHONSAFEPATH=1 # the submission folder may contain another trainer.py
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

# preflight: run the preflight on every node: a short step that finds errors before the launch and
# reports each in one line. Fails if a node is not ready.
preflight() {
    local check
    check_packages
    check_entry_point
    if [ -n "$SLIPWAY_SCRIPT" ]; then
        check=(sh "$lib/preflight.sh" "$SLIPWAY_DEVICE" "${bind_paths[@]}" ${data:+"$data"})
    else
        check=(python3 -m trainer.launch.preflight "${trainer_arguments[@]}")
    fi
    [ -z "${TRAINER_PROBE_ADDRESS:-}" ] || check=(python3 "$lib/try_head.py" "${check[@]}")
    step_on_each_node 0 "${container[@]}" "${check[@]}" ||
        die node-not-ready "the preflight failed on at least one node$step_failure"
    first_node_is_probed=''
    stop_server
    unset -v TRAINER_PROBE_ADDRESS
    choose_numa_binding
    check_profiler
}

# choose_numa_binding: set numa_options for torchrun, from numa_binding of the site file. No binding
# is used for ranks on CPUs, which torch cannot bind, or with several GPUs per rank, because
# torchrun binds rank N next to GPU N. Fails if numactl does not run on every node, because torchrun
# would then end every rank.
choose_numa_binding() {
    numa_options=()
    [ -n "${numa_binding:-}" ] && [ "$BACKEND" = ddp ] || return 0
    [ "$SLIPWAY_DEVICE" != cpu ] && [ "$SLIPWAY_DEVICE:$gpus_per_node" != auto:0 ] || return 0
    if [ "${devices_per_rank:-1}" != 1 ]; then
        log "numa_binding is not used: it does not support several GPUs per rank"
        return
    fi
    step_on_each_node 0 "${container[@]}" numactl --physcpubind=+0 true ||
        die no-numactl \
            "numa_binding: the program numactl does not run on every node$step_failure; install" \
            "it in the image, or on the nodes with USE_CONTAINER=0"
    numa_options=(--numa-binding="$numa_binding")
}

# check_profiler: check that SLIPWAY_PROFILER runs where the ranks will run. Fails if not.
check_profiler() {
    [ -z "${SLIPWAY_PROFILER:-}" ] ||
        step_on_each_node 0 "${container[@]}" "$SLIPWAY_PROFILER" --version ||
        die no-profiler \
            "SLIPWAY_PROFILER=$SLIPWAY_PROFILER does not run on every node$step_failure; it must" \
            "be on PATH: in the image, or by a module with USE_CONTAINER=0"
}
