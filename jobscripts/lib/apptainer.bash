# shellcheck shell=bash
# Apptainer as the container runtime; and SingularityCE, whose options are the same. Reads
# container_runtime, the command.

# check_image: fails if the image, or what runs it, is missing.
check_image() {
    [[ $SLIPWAY_IMAGE != *://* ]] ||
        die image-not-local \
            "SLIPWAY_IMAGE: every process would convert $SLIPWAY_IMAGE anew: convert it once, by" \
            "\`$container_runtime pull my.sif $SLIPWAY_IMAGE\`"
    require no-image 'file or folder' SLIPWAY_IMAGE \
        "\`jobgen submit image_build --site SITE\` makes it, or set USE_CONTAINER=0"
    type -P "$container_runtime" >/dev/null ||
        die no-container-runtime \
            "no $container_runtime on $HOSTNAME: name its module, or its folder as path, in the" \
            "site's file, or set USE_CONTAINER=0"
}

# image_runs: whether it can, here.
image_runs() {
    "$container_runtime" exec "$SLIPWAY_IMAGE" true
}

# set_bind_options: set binds, the options that mount each of bind_paths, and data_image as data.
# (Each runtime file defines it.) `--no-eval` in the script: the run script of an image from Docker
# would have a shell expand the arguments. Not `--cleanenv`: ranks that a launcher numbers by
# variables would each be rank 0.
set_bind_options() {
    local path
    for path in "${bind_paths[@]}"; do
        [ "$path" = / ] || binds+=(--mount "$(bind_mount "$path")") # the image has its own root
    done
    [ -z "$data_image" ] || binds+=(--mount "$(image_mount "$data_image" "$data")")
}

# bind_mount PATH: the same path inside. Not --bind, which splits at colons and commas; --mount
# reads quoted CSV.
bind_mount() {
    local quoted=${1//\"/\"\"}
    printf 'type=bind,"source=%s","destination=%s"' "$quoted" "$quoted"
}

# image_mount FILE FOLDER: the root of a squashfs file as that folder inside, read-only (Apptainer's
# manual, "Bind Paths and Mounts"). A runtime without this function cannot do that.
image_mount() {
    local quoted=${1//\"/\"\"} folder=${2//\"/\"\"}
    printf 'type=bind,"source=%s","destination=%s",image-src=/,ro' "$quoted" "$folder"
}
