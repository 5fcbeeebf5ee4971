# shellcheck shell=bash
# A session at the terminal, on one node, in what jobs run in: scripts of `jobgen shell`.

# Whether somebody types; what makes a container asks.
terminal=''
[ ! -t 0 ] || terminal=1

# open_output_folder: what stands in the place of a run folder: the folder of all of them, for the
# container to see.
open_output_folder() {
    mkdir --parents -- "$SLIPWAY_OUTPUT" ||
        die cannot-write \
            "cannot write $SLIPWAY_OUTPUT: set SLIPWAY_OUTPUT to a folder on a disk of all nodes"
}

# copy_library_to_scratch: the part of the library that is run by path, on the node's own disk. Sets
# lib.
copy_library_to_scratch() {
    copy_library "$scratch/lib" || die cannot-write "cannot write $scratch: is the disk full?"
    lib=$scratch/lib
}

# run_command [COMMAND ARGUMENT...]: run the command, or an interactive Bash without one, and end
# with its exit code. --norc: ~/.bashrc was written for the host, and may put another Python before
# PATH.
run_command() {
    local where=$image gpus=''
    [ "$USE_CONTAINER" = 1 ] || where=${venv:-$(type -P python3)}
    [ "$scheduler" = local ] || # where nobody has counted them
        gpus="$(plural "$gpus_per_node" GPU) and "
    log "on $HOSTNAME, in $where, with $gpus$(plural "$cpus" core)"
    if [ $# = 0 ]; then
        export_to_ranks PS1='slipway \h:\w\$ '
        set -- bash --norc
    fi
    "${on_head_node[@]}" "${container[@]}" "$@"
}
