# shellcheck shell=bash
# Open MPI's mpirun, 4 or 5, as what starts processes on the nodes.

LAUNCH_REFUSALS+=(
    '^(mpirun|prterun) has detected an attempt to run as root'
    '^There are not enough slots available in the system'
    '^An unrecognized option was included on the mpirun command line'
    '^mpirun: Error: unknown option'
    '^(Open RTE|PRTE) was unable to open the hostfile'
)

# set_mpirun: set mpirun, the command; mpirun_exports, an option for each exported variable, as
# mpirun passes only those that are named: call this once the environment is complete; and
# mpirun_options, if nodes are excluded.
#
# mpirun is called by its full path, by which it finds its parts on the other nodes. The scripts pass
# --bind-to none, as mpirun would bind each process, with all its threads, to one core. mpirun
# forwards SIGTERM and gives ranks one second to save (version 5: none). So that time is raised, and
# for version 5 the signal is blocked: the ranks get it from the scheduler.
set_mpirun() {
    local path name
    path=$(type -P mpirun) || die no-mpi "no mpirun on $HOSTNAME: load its module"
    refuse_root
    export_to_ranks OMPI_MCA_odls_base_sigkill_timeout=15
    mpirun=()
    if env --block-signal=TERM true 2>/dev/null; then
        export_to_ranks PRTE_MCA_prte_launch_agent='env --block-signal=TERM prted'
        mpirun=(env --block-signal=TERM)
    fi
    mpirun+=("$path")
    case " ${gpu_options[*]-} " in # for the srun that it starts under Slurm
        *" --gres=none "*)
            export_to_ranks SLURM_GPUS_PER_NODE=0
            ;;
        *" --gres="*)
            export_to_ranks SLURM_GPUS_PER_NODE="$gpus_per_node"
            ;;
    esac
    [ "$nnodes" = ${#allocation[@]} ] || exclude_nodes
    mpirun_exports=()
    while IFS= read -r name; do
        case $name in
            SLURM_* | *%*) ;; # Slurm's variables of one process; functions of the shell
            *) mpirun_exports+=(-x "$name") ;;
        esac
    done < <(unset_local_variables && compgen -e)
}

# refuse_root: fails where mpirun does not run for this user.
refuse_root() {
    ((EUID == 0)) && [[ " ${mpirun_options[*]} " != *' --allow-run-as-root '* ]] || return 0
    [ "${OMPI_ALLOW_RUN_AS_ROOT:-}${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-}" = 11 ] ||
        die mpi-as-root \
            "mpirun does not run for root: submit as another user, or set" \
            "OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
}

# exclude_nodes: let mpirun know of the nodes in `nodes` alone. It starts a process of its own on
# each node that it knows of, whatever --host says, and fails if one is dead. Sets mpirun_options.
exclude_nodes() {
    local number words=() list
    list=$(join_by , "${nodes[@]/%/:$ranks_per_node}")
    for number in "${!mpirun_options[@]}"; do
        [[ ${mpirun_options[number]} == --hostfile ]] ||
            { ((number > 0)) && [[ ${mpirun_options[number - 1]} == --hostfile ]]; } ||
            words+=("${mpirun_options[number]}")
    done
    mpirun_options=("${words[@]}" --host "$list")
    [ -z "${SLURM_JOB_ID:-}" ] || export_to_ranks \
        SLURM_JOB_NODELIST="$(join_by , "${nodes[@]}")" \
        SLURM_NODELIST="$(join_by , "${nodes[@]}")" \
        SLURM_NNODES="$nnodes" SLURM_JOB_NUM_NODES="$nnodes" \
        SLURM_TASKS_PER_NODE="$ranks_per_node(x$nnodes)"
}

# terminate_leftover_ranks: on healthy_nodes. Where mpirun was killed, its daemons end, and send
# SIGTERM to what they have started, but not all of that ends. Ranks have 15 s to save.
terminate_leftover_ranks() {
    ! launch_crashed || wait_for_verdict 15
    terminate_ranks "$job_id.$run_mark.*" # all attempts: an excluded node may be back
}

# mpirun_node NUMBER SECONDS COMMAND...: on the node of that number, for at most so long, which only
# helps. It ends the shell that it runs in.
mpirun_node() {
    local limit=$2 gpu_options=("${HELPER_OPTIONS[@]}")
    nodes=("${nodes[$1]}") nnodes=1
    shift 2
    set_mpirun
    exec timeout --kill-after=5 "$limit" "${mpirun[@]}" --bind-to none "${mpirun_options[@]}" \
        "${mpirun_exports[@]}" -n 1 "$@"
}

# mpirun_each_node SECONDS COMMAND...: once on each node, for at most so long.
mpirun_each_node() {
    local limit=$1
    shift
    set_mpirun
    exec timeout --kill-after=5 "$limit" "${mpirun[@]}" --bind-to none "${mpirun_options[@]}" \
        "${mpirun_exports[@]}" --map-by ppr:1:node:OVERSUBSCRIBE "$@"
}
