# shellcheck shell=bash
# What a job needs on its nodes: its inputs, the container in which commands run, and files on the
# nodes' local disks. The container runtimes have separate files, which define check_image,
# image_runs and set_bind_options.

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
        require no-script file SLIPWAY_SCRIPT
    elif [ -n "${SLIPWAY_CONFIG:-}" ]; then
        require no-script file SLIPWAY_CONFIG
    fi
    check_data
    require no-local-disk folder SLIPWAY_LOCAL_DISK
}

# make_scratch: make a scratch folder on the local disk of every node, for caches and copies. Only
# the job's owner can enter it: other users could put code into the caches. clean_up_job removes it.
# Sets scratch; mount_point, the folder in it where the container mounts a squashfs image of the
# data; and scratch_record, the file in the run folder that contains the scratch folder's path.
make_scratch() {
    scratch=$SLIPWAY_LOCAL_DISK/slipway-$scratch_id.$(random_name)
    mount_point='' scratch_record=''
    [ "$data_kind" != squashfs ] || mount_point=$scratch/mounted
    trap clean_up_job EXIT
    [ -z "${log_dir:-}" ] || record_scratch
    make_folder_on_each_node "$scratch" ${mount_point:+"$mount_point"} ||
        die cannot-write "cannot make a folder in $SLIPWAY_LOCAL_DISK on every node$step_failure"
    start_scratch_watch
}

# start_scratch_watch: start a process on the other nodes that removes the scratch folder if the
# scheduler ends the job. Does nothing by default. (slurm.bash overrides this default.)
start_scratch_watch() {
    :
}

# scratch_watch_runs: return 0 if that process runs. Returns 1 by default. (slurm.bash overrides
# this default.)
scratch_watch_runs() {
    return 1
}

# stop_scratch_watch: stop that process. Does nothing by default. (slurm.bash overrides this
# default.)
stop_scratch_watch() {
    :
}

# record_scratch: write the scratch folder's path to the run folder. A later attempt removes that
# folder if this one cannot.
record_scratch() {
    scratch_record=$log_dir/scratch
    printf '%s\n' "$scratch" >"$scratch_record" ||
        die cannot-write "cannot write $scratch_record: is the disk full?"
    remove_old_scratch
}

# make_folder_on_each_node PATH [BELOW]: make PATH on every node, and BELOW, a folder in it. Tries
# again if the launcher timed out, as Open MPI 5 sometimes hangs before it starts anything
# (docs/decisions/0007). The second try accepts the folder that the first one made; so does the
# second of two Dask workers on one node. It refuses links: others could create them once the name
# is known. Fails if others could replace PATH, unless PATH is in SLIPWAY_TRUSTED_FOLDER.
make_folder_on_each_node() {
    local try code trusted=0
    ! is_trusted "$1" || trusted=1
    for try in 1 2; do
        code=0
        step_on_each_node 0 sh "$lib/make_folder.sh" "$trusted" "$@" || code=$?
        [ "$code" = 124 ] || [ "$code" = 137 ] || break # exit codes of timeout(1)
        [ "$try" = 2 ] ||
            warn slow-nodes "the nodes exceeded SLIPWAY_PREFLIGHT_SECONDS: trying once more"
    done
    return "$code"
}

# remove_old_scratch: remove the scratch folders of earlier attempts of this run, which remain after
# a node failure or scancel. Keeps folders of another job that runs or may run. Removes only folders
# with a name that this library gives.
remove_old_scratch() {
    local folder path number silent='' old=() # silent: query a scheduler only once, it takes 80 s
    for folder in "$RUN_DIR"/logs/*/; do
        [ -f "$folder/job" ] && [ -f "$folder/scratch" ] || continue
        number=${folder%/}
        read -r path <"$folder/scratch" || :
        [[ $path =~ /slipway-[^/]+\.[0-9a-f]{16}$ ]] && [ "$path" != "$scratch" ] || continue
        ! attempt_has_ended "${number##*/}" || old+=("$path")
    done
    [ ${#old[@]} -eq 0 ] ||
        remove_on_each_node 60 "${old[@]}" ||
        warn scratch-left "could not remove the scratch folders of earlier attempts: ${old[*]}"
}

# remove_on_each_node SECONDS FOLDER...: remove the folders on each node, with a step that requests
# no GPU, because ranks that cannot be killed may hold the GPUs.
remove_on_each_node() {
    local gpu_options=("${HELPER_OPTIONS[@]}")
    on_each_node "$1" sh "$lib/remove_folders.sh" "${@:2}"
}

# random_name: print 16 random hexadecimal digits.
random_name() {
    od --address-radix=n --format=x8 --read-bytes=8 /dev/urandom | tr --delete ' '
}

# remove_scratch: remove the scratch folder on every node, and the attempt's containers on this one.
# If that fails, remove it at least on this node; the processes of start_scratch_watch may remove it
# on the others. In an interactive job the allocation outlives this script, so they are stopped. A
# failure here changes neither the exit code nor a requeue.
remove_scratch() {
    local path=${scratch:-}
    [ -n "$path" ] || return 0
    scratch=''
    ! declare -F remove_containers >/dev/null || remove_containers "$path" || :
    [ -z "${scratch_record:-}" ] || echo "job $job_id has ended" >>"$scratch_record" || :
    if remove_on_each_node "${cleanup_seconds:-20}" "$path" 2>/dev/null; then
        rm -f -- ${scratch_record:+"$scratch_record"} # a later attempt has nothing to remove
        stop_scratch_watch
        return 0
    fi
    [ -z "${interactive:-}" ] || stop_scratch_watch
    timeout 20 sh "$lib/remove_folders.sh" "$path" &&
        { [ "$nnodes" = 1 ] || scratch_watch_runs; } ||
        warn scratch-left "$path remains on each node where it could not be removed"
}

# set_binds: add the script or configuration and the data to bind_paths, the host's paths that the
# container sees under the same names. Sets binds, the container runtime's options for all of them.
# For data in a squashfs image, also sets data_image, the image, and data, the folder inside. Fails
# if a path cannot be read.
set_binds() {
    local path
    data_image=''
    if [ -n "$SLIPWAY_SCRIPT" ]; then
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

# bind_mount PATH: print the value of Apptainer's and Podman's --mount that mounts PATH under the same
# path in the container. --mount reads quoted CSV, while --bind splits paths at colons and commas,
# and --volume at colons.
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
    step_on_each_node 3600 bash "$lib/stage.bash" "$scratch" "${steps[@]}" ||
        die staging-failed "cannot copy image or data to every node$step_failure"
}
