# shellcheck shell=bash
# The program that each rank runs, and the checks on every node before the launch.

: "${SLIPWAY_ADAPT:=1}"

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
        [[ $SLIPWAY_SCRIPT != "-m "* ]] || program+=(-m)
        program+=("${SLIPWAY_SCRIPT#-m }" "$@")
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
    run_step_on_nodes 0 "${container[@]}" "${check[@]}" ||
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
    run_step_on_nodes 0 "${container[@]}" numactl --physcpubind=+0 true ||
        die no-numactl \
            "numa_binding: the program numactl does not run on every node$step_failure; install" \
            "it in the image, or on the nodes with USE_CONTAINER=0"
    numa_options=(--numa-binding="$numa_binding")
}

# check_profiler: check that SLIPWAY_PROFILER runs where the ranks will run. Fails if not.
check_profiler() {
    [ -z "${SLIPWAY_PROFILER:-}" ] ||
        run_step_on_nodes 0 "${container[@]}" "$SLIPWAY_PROFILER" --version ||
        die no-profiler \
            "SLIPWAY_PROFILER=$SLIPWAY_PROFILER does not run on every node$step_failure; it must" \
            "be on PATH: in the image, or by a module with USE_CONTAINER=0"
}
