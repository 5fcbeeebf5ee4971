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

# set_container OPTION...: the words before a command, from image and bind_paths. Sets container.
# The host's network and shared memory, by which ranks reach each other. A PID namespace of its own:
# nothing in it outlives its first process.
set_container() {
    local path
    local -A mounted=([/]=1) # the image has its own root; Podman refuses to mount one path twice
    container=(bash "$lib/podman_run.bash" --rm --network=host --ipc=host --cgroups=no-conmon
        --security-opt=label=disable --ulimit=host --entrypoint= --workdir="$PWD"
        --label=slipway="$scratch" "$@")
    ((EUID == 0)) || container+=(--userns=keep-id) # files are the user's own, inside and outside
    [ ! -d /dev/infiniband ] || container+=(--device=/dev/infiniband)
    for path in "${HOME:-/}" "${bind_paths[@]}"; do # HOME, as Apptainer does
        [ -z "${mounted[$path]:-}" ] && [ -e "$path" ] || continue
        mounted[$path]=1
        container+=(--mount "$(bind_mount "$path")")
    done
    [ -z "${terminal+set}" ] || container+=(--interactive ${terminal:+--tty}) # of a shell
    container+=("$image" sh "$lib/podman_init.sh")
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
