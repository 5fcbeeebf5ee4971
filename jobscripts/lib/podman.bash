# shellcheck shell=bash
# Rootless Podman as the container runtime. The image is a name (docker://..., or a name from
# `podman images`, such as localhost/my:1) or an archive (docker-archive:FILE, oci-archive:FILE).

# check_image: fail if Podman is missing or the image is a plain file or folder. Podman itself
# reports a missing image. (Each runtime file defines it.)
check_image() {
    type -P podman >/dev/null ||
        die no-container-runtime \
            "no podman on $HOSTNAME: add its module, or its folder as path, to the site file," \
            "or set USE_CONTAINER=0"
    ! [ -e "$SLIPWAY_IMAGE" ] ||
        die image-not-local \
            "SLIPWAY_IMAGE: podman cannot run a file or folder: if it is an archive, use" \
            "docker-archive:$SLIPWAY_IMAGE or oci-archive:; a SIF or a sandbox needs container =" \
            "\"apptainer\""
}

# image_runs: return 0 if Podman can run the image on this machine. (Each runtime file except
# pyxis.bash defines it.)
image_runs() {
    podman run --rm --entrypoint= "$SLIPWAY_IMAGE" true
}

# set_bind_options: set the mount options for all bind_paths and for the home folder, which
# Apptainer also mounts, and the options that depend on the user, the node and the terminal. Sets
# binds. (Each runtime file defines it.) The script passes the options for the host's network and
# shared memory, by which ranks reach each other. The container has its own PID namespace: no
# process in it outlives its first one.
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
    [ -z "${terminal+set}" ] || binds+=(--interactive ${terminal:+--tty}) # for `jobgen shell`
}

# remove_containers SCRATCH: remove the attempt's remaining containers on this node, which have this
# scratch folder as their label. A container does not end with the process that started it.
remove_containers() {
    local left
    mapfile -t left < <(timeout 20 podman ps --quiet --filter label=slipway="$1")
    [ ${#left[@]} = 0 ] || timeout 20 podman rm --force --time=0 "${left[@]}" >/dev/null
}
