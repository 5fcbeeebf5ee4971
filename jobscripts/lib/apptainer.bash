# shellcheck shell=bash
# Apptainer, or SingularityCE with the same options, as the container runtime. Reads
# container_runtime, the name of the command.

# check_image: fail if the image or the container runtime is missing. (Each runtime file defines
# it.)
check_image() {
    [[ $SLIPWAY_IMAGE != *://* ]] ||
        die image-not-local \
            "SLIPWAY_IMAGE: every process would convert $SLIPWAY_IMAGE: convert it once with" \
            "\`$container_runtime pull my.sif $SLIPWAY_IMAGE\`"
    require no-image 'file or folder' SLIPWAY_IMAGE \
        "\`jobgen submit image_build --site SITE\` makes it, or set USE_CONTAINER=0"
    type -P "$container_runtime" >/dev/null ||
        die no-container-runtime \
            "no $container_runtime on $HOSTNAME: add its module, or its folder as path, to the" \
            "site file, or set USE_CONTAINER=0"
}

# image_runs: return 0 if the container runtime can run the image on this machine; 1 for a name,
# which it would convert each time. (Each runtime file except pyxis.bash defines it.)
image_runs() {
    ! image_is_name && "$container_runtime" exec "$SLIPWAY_IMAGE" true
}

# set_bind_options: set the mount options for all bind_paths, and for data_image if the data is a
# squashfs image. Sets binds. (Each runtime file defines it.) The script passes `--no-eval`:
# otherwise the run script of an image from Docker lets a shell expand the arguments. It does not
# pass `--cleanenv`: each rank that a launcher numbers by variables would then be rank 0.
set_bind_options() {
    local path
    for path in "${bind_paths[@]}"; do
        [ "$path" = / ] || binds+=(--mount "$(bind_mount "$path")") # the image has its own root
    done
    [ -z "$data_image" ] || binds+=(--mount "$(image_mount "$data_image" "$data")")
}

# image_mount FILE FOLDER: print the value of --mount that mounts the squashfs file's root read-only
# at FOLDER in the container (Apptainer's manual, "Bind Paths and Mounts"). If a runtime does not
# define this function, it cannot mount images.
image_mount() {
    local quoted=${1//\"/\"\"} folder=${2//\"/\"\"}
    printf 'type=bind,"source=%s","destination=%s",image-src=/,ro' "$quoted" "$folder"
}
