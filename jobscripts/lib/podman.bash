# shellcheck shell=bash
# Podman as the container runtime, without root. The image is a name (docker://..., or one of
# `podman images`, as localhost/my:1), an archive (docker-archive:FILE, oci-archive:FILE), or the
# folder of an unpacked image.

# check_image: fails if what runs the image is missing. Podman itself says where there is no image.
check_image() {
    type -P podman >/dev/null ||
        die "no podman on $HOSTNAME: load its module, or set USE_CONTAINER=0"
    ! [ -f "$SLIPWAY_IMAGE" ] ||
        die "SLIPWAY_IMAGE: podman does not run a file: docker-archive:$SLIPWAY_IMAGE, or" \
            "oci-archive:, names an archive, and a SIF is for container = \"apptainer\""
}

# image_runs: whether it can, here.
image_runs() {
    local root=()
    [ ! -d "$SLIPWAY_IMAGE" ] || root=(--rootfs)
    podman run --rm "${root[@]}" "$SLIPWAY_IMAGE" true
}

# set_container OPTION...: the words before a command, from image and bind_paths. Sets container.
# The namespaces of the host, as ranks reach each other by its network, its shared memory and (MPI)
# its process numbers. No cgroup of its own: the scheduler's limits hold, and its end of a job
# reaches what is inside. Where both set a variable, Podman takes the image's.
set_container() {
    local path
    container=(podman run --rm --network=host --ipc=host --pid=host --cgroups=disabled
        --security-opt=label=disable --ulimit=host --env-host --entrypoint= --workdir="$PWD" "$@")
    ((EUID == 0)) || container+=(--userns=keep-id) # files are the user's own, inside and outside
    [ ! -d /dev/infiniband ] || container+=(--device=/dev/infiniband)
    [ ! -d "${HOME:-}" ] || container+=(--mount "$(bind_mount "$HOME")") # as Apptainer does
    for path in "${bind_paths[@]}"; do
        [ "$path" = / ] || container+=(--mount "$(bind_mount "$path")") # the image has its own root
    done
    [ ! -d "$image" ] || container+=(--rootfs)
    container+=("$image")
}

# bind_mount PATH: the same path inside. Not --volume, which splits at colons; --mount reads CSV.
bind_mount() {
    local quoted=${1//\"/\"\"}
    printf 'type=bind,"source=%s","destination=%s"' "$quoted" "$quoted"
}
