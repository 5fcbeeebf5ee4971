# shellcheck shell=bash
# `jobgen shell`: an interactive session on one node, in the environment of a job.

# 1 if standard input is a terminal. The container runtimes' files read it.
terminal=''
[ ! -t 0 ] || terminal=1

# open_output_folder: make SLIPWAY_OUTPUT, the folder of all runs, which the container mounts
# instead of a run folder.
open_output_folder() {
    mkdir --parents -- "$SLIPWAY_OUTPUT" ||
        die cannot-write \
            "cannot write $SLIPWAY_OUTPUT: set SLIPWAY_OUTPUT to a folder on a disk of all nodes"
}

# copy_library_to_scratch: copy the library to the node's local disk, so that its files can be run
# by path. Sets lib.
copy_library_to_scratch() {
    copy_library "$scratch/lib" || die cannot-write "cannot write $scratch: is the disk full?"
    lib=$scratch/lib
}

# run_command [COMMAND ARGUMENT...]: run the command, or an interactive Bash, and exit with its exit
# code. --norc: ~/.bashrc is written for the host and may put another Python first on PATH.
run_command() {
    local where=$image gpus=''
    [ "$USE_CONTAINER" = 1 ] || where=${venv:-$(type -P python3)}
    [ "$scheduler" = local ] || # there the GPUs are not counted
        gpus="$(plural "$gpus_per_node" GPU) and "
    log "on $HOSTNAME, in $where, with $gpus$(plural "$cpus" core)"
    if [ $# = 0 ]; then
        export_to_ranks PS1='slipway \h:\w\$ '
        set -- bash --norc
    fi
    "${on_head_node[@]}" "${container[@]}" "$@"
}
