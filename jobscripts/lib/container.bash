# shellcheck shell=bash
# The inputs of a job and the container in which its commands run. The container runtimes have
# separate files, which define check_image, image_runs and set_bind_options.

# check_inputs: check the image or environment, the script or configuration, the data and the local
# disk. Sets image, venv and data, the paths to use: those of the settings, until copies on the
# local disk replace them. Sets data_kind. Fails if one is missing. Writes nothing to disk.
check_inputs() {
    image=$SLIPWAY_IMAGE
    data=$SLIPWAY_DATA
    case $USE_CONTAINER in
        1) check_image ;;
        0) find_python ;;
    esac
    if [ -n "$SLIPWAY_SCRIPT" ]; then
        [[ $SLIPWAY_SCRIPT == "-m "* ]] || require no-script file SLIPWAY_SCRIPT
    elif [ -n "${SLIPWAY_CONFIG:-}" ]; then
        require no-script file SLIPWAY_CONFIG
    fi
    check_data
    require no-local-disk folder SLIPWAY_LOCAL_DISK
}

# set_binds: add the script or configuration and the data to bind_paths, the host's paths that the
# container sees under the same names. Sets binds, the container runtime's options for all of them.
# For data in a squashfs image, also sets data_image, the image, and data, the folder inside. Fails
# if a path cannot be read.
set_binds() {
    local path
    data_image=''
    if [[ $SLIPWAY_SCRIPT == "-m "* ]]; then
        bind_paths+=("$PWD") # where Python looks for the module
    elif [ -n "$SLIPWAY_SCRIPT" ]; then
        bind_paths+=("$SLIPWAY_SCRIPT" "$(dirname -- "$SLIPWAY_SCRIPT")")
    elif [ -n "${SLIPWAY_CONFIG:-}" ]; then
        bind_paths+=("$SLIPWAY_CONFIG")
    fi
    if [ -n "$mount_point" ]; then
        data_image=$data
        data=$mount_point
    elif [ -n "$data" ] && [[ $data != "$scratch"/* ]]; then # copies are on SLIPWAY_LOCAL_DISK
        bind_paths+=("$data")
    fi
    for path in "${bind_paths[@]}"; do
        [ -r "$path" ] ||
            die cannot-read \
                "$path is missing or cannot be read, and the job needs it: see bind_paths in this" \
                "script"
    done
    binds=()
    [ "$USE_CONTAINER" = 0 ] || set_bind_options
}

# bind_mount PATH: print the value of Apptainer's and Podman's --mount that mounts PATH under the
# same path in the container. --mount reads quoted CSV, while --bind splits paths at colons and
# commas, and --volume at colons.
bind_mount() {
    local quoted=${1//\"/\"\"}
    printf 'type=bind,"source=%s","destination=%s"' "$quoted" "$quoted"
}

# trim_container_command GPU_OPTION...: empty `container` if USE_CONTAINER is 0. If SLIPWAY_DEVICE
# is cpu, remove each GPU_OPTION from it, because runtimes warn about missing GPUs.
# shellcheck disable=SC2120 # a runtime without GPU options is called without arguments
trim_container_command() {
    local word words=()
    [ "$USE_CONTAINER" = 1 ] || container=()
    [ "$SLIPWAY_DEVICE" = cpu ] || return 0
    for word in "${container[@]}"; do
        [[ " $* " == *" $word "* ]] || words+=("$word")
    done
    container=("${words[@]}")
}

# check_entry_point: once per job, check the image's entry point (Apptainer's run script). Fails if
# it does not run its arguments or does not return their exit code: every command in the container
# would then seem to succeed. Ignores other failures: the next command in the container reports
# them.
check_entry_point() {
    local code=0
    [ "$USE_CONTAINER" = 1 ] && [ -z "${entry_point_is_checked:-}" ] || return 0
    run_limited 0 "${on_head_node[@]}" "${container[@]}" sh -c 'exit 43' || code=$?
    [ "$code" != 0 ] ||
        die bad-entry-point \
            "SLIPWAY_IMAGE: \`sh -c 'exit 43'\` returned 0 in $SLIPWAY_IMAGE: its entry point" \
            "(runscript) must end with \`exec \"\$@\"\`"
    [ -z "$step_timed_out" ] ||
        die node-not-ready "$SLIPWAY_IMAGE does not start on $head_node$step_failure"
    entry_point_is_checked=1
}

# stage_to_local_disk: with SLIPWAY_STAGE=1, copy image and data to the scratch folder of every node
# and use the copies, because many ranks that open the same files overload a shared disk. Unpacks a
# tar. Sets image and data.
stage_to_local_disk() {
    local steps=()
    [ "$SLIPWAY_STAGE" = 1 ] || return 0
    if [ "$USE_CONTAINER" = 1 ] && [ -f "$image" ]; then # a sandbox folder is not copied
        steps+=(copy "$image" "$scratch/image")
        image=$scratch/image/${image##*/}
    fi
    if [ "$data_kind" = tar ]; then
        steps+=(unpack "$data" "$scratch/data")
        data=$scratch/data
    elif [ -n "$data" ]; then
        steps+=(copy "$data" "$scratch/data")
        data=$scratch/data/${data##*/}
    fi
    [ ${#steps[@]} -gt 0 ] || return 0
    cleanup_seconds=${cleanup_seconds:-60} # there are many files to remove
    log "copying image and data to $scratch on every node (SLIPWAY_STAGE=1)"
    run_step_on_nodes 3600 bash "$lib/stage.bash" "$scratch" "${steps[@]}" ||
        die staging-failed "cannot copy image or data to every node$step_failure"
}
