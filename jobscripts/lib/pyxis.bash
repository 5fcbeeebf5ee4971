# shellcheck shell=bash
# Pyxis as the container runtime: options of srun, with which Slurm starts each task in the image.
# The image is a squashfs file from `enroot import`, or a name in a registry
# (docker://nvcr.io#nvidia/x).

# check_image: fail if the image or the Slurm plugin is missing. (Each runtime file defines it.)
check_image() {
    local help
    [[ $SLIPWAY_IMAGE == *://* ]] ||
        require no-image file SLIPWAY_IMAGE "\`enroot import\` makes one, or set USE_CONTAINER=0"
    help=$(timeout 20 srun --help 2>&1) || :
    [[ $help == *--container-image* ]] ||
        die no-container-runtime \
            "srun has no option --container-image on $HOSTNAME: Slurm's plugin Pyxis is missing;" \
            "set USE_CONTAINER=0, or another container in the site file"
}

# set_bind_options: set srun's option that mounts all bind_paths. Sets binds, and on_head_node,
# because only srun starts a container. (Each runtime file defines it.) Fails if Pyxis cannot bind a
# path.
set_bind_options() {
    local path mounts=()
    for path in "${bind_paths[@]}"; do
        [[ $path != *[:,]* ]] ||
            die bad-path "$path: Pyxis cannot bind a path with a colon or a comma: rename it"
        [ "$path" = / ] || mounts+=("$path:$path") # the image has its own root
    done
    binds=(--container-mounts="$(join_by , "${mounts[@]}")")
    # shellcheck disable=SC2154 # the script assigns srun_options
    on_head_node=(srun --overlap --nodes=1 --ntasks=1 "${srun_options[@]}" --nodelist="$head_node")
    if [ -z "${terminal+set}" ]; then # not in `jobgen shell`
        on_head_node+=("${HELPER_OPTIONS[@]}")
    elif [ -n "$terminal" ]; then
        on_head_node+=(--pty)
    fi
}
