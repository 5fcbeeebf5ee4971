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

# set_container OPTION...: the words before a command, from image and bind_paths, and from
# data_image, which is mounted as data. Sets container.
# --no-eval: the run script of an image from Docker would have a shell expand the arguments. No
# --cleanenv: ranks that a launcher numbers by variables would each be rank 0.
set_container() {
    local path
    container=("$container_runtime" run --no-eval --pwd="$PWD" "$@")
    for path in "${bind_paths[@]}"; do
        [ "$path" = / ] || container+=(--mount "$(bind_mount "$path")") # the image has its own root
    done
    [ -z "$data_image" ] || container+=(--mount "$(image_mount "$data_image" "$data")")
    container+=("$image")
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
