# shellcheck shell=bash
# Open MPI's mpirun (4 or 5) as the launcher.

LAUNCH_REFUSALS+=(
    '^(mpirun|prterun) has detected an attempt to run as root'
    '^There are not enough slots available in the system'
    '^An unrecognized option was included on the mpirun command line'
    '^mpirun: Error: unknown option'
    '^(Open RTE|PRTE) was unable to open the hostfile'
)

# set_mpirun: set the command and options of mpirun. Sets mpirun, the command, and mpirun_exports,
# an option for each exported variable: mpirun passes only named variables, so call this after all
# variables are exported. Changes mpirun_options if nodes are excluded. Fails if mpirun is missing
# or refuses root.
#
# mpirun is called by its full path, from which it finds its parts on the other nodes. The scripts
# pass --bind-to none, as mpirun would bind each process, with all its threads, to one core. mpirun
# forwards SIGTERM and gives ranks one second to save (version 5: none). So this function increases
# that time, and blocks the signal for version 5: the ranks get it from the scheduler.
set_mpirun() {
    local path name
    path=$(type -P mpirun) || die no-mpi "mpirun is not on PATH on $HOSTNAME: load its module"
    refuse_root
    export_to_ranks OMPI_MCA_odls_base_sigkill_timeout=15
    mpirun=()
    if env --block-signal=TERM true 2>/dev/null; then
        export_to_ranks PRTE_MCA_prte_launch_agent='env --block-signal=TERM prted'
        mpirun=(env --block-signal=TERM)
    fi
    mpirun+=("$path")
    case " ${gpu_options[*]-} " in # for the srun that mpirun calls under Slurm
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
            SLURM_* | *%*) ;; # Slurm's variables of one process; exported shell functions
            *) mpirun_exports+=(-x "$name") ;;
        esac
    done < <(unset_local_variables && compgen -e)
}

# refuse_root: fail if the user is root and mpirun is not configured to run as root.
refuse_root() {
    ((EUID == 0)) && [[ " ${mpirun_options[*]} " != *' --allow-run-as-root '* ]] || return 0
    [ "${OMPI_ALLOW_RUN_AS_ROOT:-}${OMPI_ALLOW_RUN_AS_ROOT_CONFIRM:-}" = 11 ] ||
        die mpi-as-root \
            "mpirun refuses to run as root: submit as another user, or set" \
            "OMPI_ALLOW_RUN_AS_ROOT=1 and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
}

# exclude_nodes: make mpirun use only the nodes in `nodes`. mpirun starts a daemon on each node of
# the allocation that it detects, whatever --host is, and fails if one of them is dead. Changes
# mpirun_options; exports Slurm's variables of the allocation with these nodes only.
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

# terminate_leftover_ranks: end the ranks that a killed mpirun has left on healthy_nodes. Its
# daemons end and send SIGTERM to the processes that they have started, but not all of those end.
# The ranks have 15 s to save. (Overrides the default in leftovers.bash.)
terminate_leftover_ranks() {
    ! launch_crashed || wait_for_verdict 15
    terminate_ranks "$job_id.$run_mark.*" # of all attempts: an excluded node may respond again
}

# mpirun_node NUMBER SECONDS COMMAND...: run a helper command on the node of this number, with this
# time limit. Replaces the shell in which it is called. (Each launcher file defines LAUNCHER_node.)
mpirun_node() {
    local limit=$2 gpu_options=("${HELPER_OPTIONS[@]}")
    nodes=("${nodes[$1]}") nnodes=1
    shift 2
    set_mpirun
    exec timeout --kill-after=5 "$limit" "${mpirun[@]}" --bind-to none "${mpirun_options[@]}" \
        "${mpirun_exports[@]}" -n 1 "$@"
}

# mpirun_each_node SECONDS COMMAND...: run COMMAND once on each node, with this time limit. Replaces
# the shell in which it is called. (Each launcher file defines LAUNCHER_each_node.)
mpirun_each_node() {
    local limit=$1
    shift
    set_mpirun
    exec timeout --kill-after=5 "$limit" "${mpirun[@]}" --bind-to none "${mpirun_options[@]}" \
        "${mpirun_exports[@]}" --map-by ppr:1:node:OVERSUBSCRIBE "$@"
}
