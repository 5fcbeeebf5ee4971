# shellcheck shell=bash
# Podman as the container runtime, without root. The image is a name (docker://..., or one of
# `podman images`, as localhost/my:1), or an archive (docker-archive:FILE, oci-archive:FILE).

# check_image: fails if what runs the image is missing. Podman itself says where there is no image.
check_image() {
    type -P podman >/dev/null ||
        die no-container-runtime \
            "no podman on $HOSTNAME: name its module, or its folder as path, in the site's file," \
            "or set USE_CONTAINER=0"
    ! [ -e "$SLIPWAY_IMAGE" ] ||
        die image-not-local \
            "SLIPWAY_IMAGE: podman runs no file or folder: docker-archive:$SLIPWAY_IMAGE, or" \
            "oci-archive:, names an archive; a SIF or a sandbox is for container = \"apptainer\""
}

# image_runs: whether it can, here.
image_runs() {
    podman run --rm --entrypoint= "$SLIPWAY_IMAGE" true
}

# set_bind_options: set binds, the options that mount each of bind_paths and the home folder, as
# Apptainer does, and those that depend on the user, on the node and on the terminal. (Each runtime
# file defines it.) In the script, the container has the host's network and shared memory, by which
# ranks reach each other, and its own PID namespace: no process in it outlives its first one.
set_bind_options() {
    local path
    local -A mounted=([/]=1) # the image has its own root; Podman refuses to mount one path twice
    ((EUID == 0)) || binds+=(--userns=keep-id) # files have the same owner inside and outside
    [ ! -d /dev/infiniband ] || binds+=(--device=/dev/infiniband)
    for path in "${HOME:-/}" "${bind_paths[@]}"; do
        [ -z "${mounted[$path]:-}" ] && [ -e "$path" ] || continue
        mounted[$path]=1
        binds+=(--mount "$(bind_mount "$path")")
    done
    [ -z "${terminal+set}" ] || binds+=(--interactive ${terminal:+--tty}) # jobgen shell
}

# remove_containers SCRATCH: those of the attempt with that folder which are left on this node. A
# container does not end with the process that has started it.
remove_containers() {
    local left
    mapfile -t left < <(timeout 20 podman ps --quiet --filter label=slipway="$1")
    [ ${#left[@]} = 0 ] || timeout 20 podman rm --force --time=0 "${left[@]}" >/dev/null || :
}

# bind_mount PATH: the same path inside. Not --volume, which splits at colons; --mount reads CSV.
bind_mount() {
    local quoted=${1//\"/\"\"}
    printf 'type=bind,"source=%s","destination=%s"' "$quoted" "$quoted"
}
