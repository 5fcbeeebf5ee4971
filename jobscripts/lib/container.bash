# shellcheck shell=bash
# What a job needs where its processes run: its inputs, the words of the container before each
# command, and what is on the local disks of the nodes. The container runtimes have files of their
# own, with check_image, image_runs and set_bind_options.

# check_inputs: fails if the environment, or what is to be trained, is missing. Nothing has been
# written yet. Sets image, venv and data, the paths that are used: the settings, unless copies on
# the local disk take their place; and data_kind.
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

# make_scratch: a new folder on the local disk of every node, for caches and copies, which only the
# job's owner may enter: whoever else could write there could put code into the caches. Sets
# scratch, and mount_point, a folder in it, where the data are to be mounted. It goes at the end of
# the job. Sets scratch_record too, the file in the run folder that names it.
make_scratch() {
    scratch=$SLIPWAY_LOCAL_DISK/slipway-$scratch_id.$(random_name)
    mount_point='' scratch_record=''
    [ "$data_kind" != squashfs ] || mount_point=$scratch/mounted
    trap clean_up_job EXIT
    [ -z "${log_dir:-}" ] || record_scratch
    make_folder_on_each_node "$scratch" ${mount_point:+"$mount_point"} ||
        die cannot-write "no folder could be made in $SLIPWAY_LOCAL_DISK of every node$step_failure"
    start_scratch_watch
}

# start_scratch_watch: where a scheduler lets a job that it ends remove nothing on its other nodes.
start_scratch_watch() {
    :
}

# scratch_watch_runs: whether that runs.
scratch_watch_runs() {
    return 1
}

# stop_scratch_watch: what that has started.
stop_scratch_watch() {
    :
}

# record_scratch: in the run folder, for a later attempt, which removes it where this one cannot.
record_scratch() {
    scratch_record=$log_dir/scratch
    printf '%s\n' "$scratch" >"$scratch_record" ||
        die cannot-write "cannot write $scratch_record: is the disk full?"
    remove_old_scratch
}

# make_folder_on_each_node PATH [BELOW]: once more where the launcher was killed for taking too
# long, as Open MPI 5 hangs now and then before it starts anything (docs/decisions/0007). The second
# try finds the folder where the first has made it, as does the second of two Dask workers on one
# node: not a link, which others could make once the name is known. BELOW is a folder in PATH. Fails
# where others could exchange PATH, unless it is in SLIPWAY_TRUSTED_FOLDER.
make_folder_on_each_node() {
    local try code trusted=0
    ! is_trusted "$1" || trusted=1
    for try in 1 2; do
        code=0
        step_on_each_node 0 sh "$lib/make_folder.sh" "$trusted" "$@" || code=$?
        [ "$code" = 124 ] || [ "$code" = 137 ] || break # as timeout(1) ends
        [ "$try" = 2 ] ||
            warn slow-nodes "the nodes do not answer within SLIPWAY_PREFLIGHT_SECONDS: once more"
    done
    return "$code"
}

# remove_old_scratch: the folders of earlier attempts of this run, which stay where a node died, and
# after scancel. Not those of another job that still runs, or may run, as the scheduler is silent;
# and only what has our own names.
remove_old_scratch() {
    local folder path number silent='' old=() # silent: it can take 80 s to ask once more
    for folder in "$RUN_DIR"/logs/*/; do
        [ -f "$folder/job" ] && [ -f "$folder/scratch" ] || continue
        number=${folder%/}
        read -r path <"$folder/scratch" || :
        [[ $path =~ /slipway-[^/]+\.[0-9a-f]{16}$ ]] && [ "$path" != "$scratch" ] || continue
        ! attempt_has_ended "${number##*/}" || old+=("$path")
    done
    [ ${#old[@]} -eq 0 ] ||
        remove_on_each_node 60 "${old[@]}" ||
        warn scratch-left "old folders stay: ${old[*]}"
}

# remove_on_each_node SECONDS FOLDER...: by a step that takes no GPU, as ranks that cannot be killed
# may hold them.
remove_on_each_node() {
    local gpu_options=("${HELPER_OPTIONS[@]}")
    on_each_node "$1" sh "$lib/remove_folders.sh" "${@:2}"
}

# random_name: 16 hexadecimal digits.
random_name() {
    od --address-radix=n --format=x8 --read-bytes=8 /dev/urandom | tr --delete ' '
}

# remove_scratch: on every node, and on this one the attempt's containers. Where that fails, on this
# one at least, and on the others what start_scratch_watch has started may do it, unless the
# allocation outlives this script: nothing may. Neither exit code nor requeue change.
remove_scratch() {
    local path=${scratch:-}
    [ -n "$path" ] || return 0
    scratch=''
    ! declare -F remove_containers >/dev/null || remove_containers "$path" || :
    [ -z "${scratch_record:-}" ] || echo "job $job_id has ended" >>"$scratch_record" || :
    if remove_on_each_node "${cleanup_seconds:-20}" "$path" 2>/dev/null; then
        rm -f -- ${scratch_record:+"$scratch_record"} # nothing for a later attempt to look after
        stop_scratch_watch
        return 0
    fi
    [ -z "${interactive:-}" ] || stop_scratch_watch
    timeout 20 sh "$lib/remove_folders.sh" "$path" &&
        { [ "$nnodes" = 1 ] || scratch_watch_runs; } ||
        warn scratch-left "$path stays on each node where it could not be removed"
}

# set_binds: add the script or configuration and the data to bind_paths, the paths of the host that
# the container sees under the same names. Sets binds, the container runtime's options for all of
# them; and, for data in a squashfs image, data_image, the image, and data, the folder inside. Fails
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

# use_container GPU_OPTION...: empty `container` if USE_CONTAINER is 0; remove each GPU_OPTION from
# it if SLIPWAY_DEVICE is cpu, as runtimes warn about GPUs that are missing.
# shellcheck disable=SC2120 # a runtime without GPU options is called without arguments
use_container() {
    local word words=()
    [ "$USE_CONTAINER" = 1 ] || container=()
    [ "$SLIPWAY_DEVICE" = cpu ] || return 0
    for word in "${container[@]}"; do
        [[ " $* " == *" $word "* ]] || words+=("$word")
    done
    container=("${words[@]}")
}

# check_entry_point: once in a job, fails if the image's entry point, Apptainer's run script, does
# not run its arguments, or does not end with their exit code: then every command in the container
# would succeed. What else keeps one from starting is for who starts the next.
check_entry_point() {
    local code=0
    [ "$USE_CONTAINER" = 1 ] && [ -z "${entry_point_is_checked:-}" ] || return 0
    run_limited 0 "${on_head_node[@]}" "${container[@]}" sh -c 'exit 43' || code=$?
    [ "$code" != 0 ] ||
        die bad-entry-point \
            "SLIPWAY_IMAGE: \`sh -c 'exit 43'\` ended with 0 in $SLIPWAY_IMAGE: its entry point" \
            "(runscript) has to end with \`exec \"\$@\"\`"
    [ -z "$step_timed_out" ] ||
        die node-not-ready "$SLIPWAY_IMAGE does not start on $head_node$step_failure"
    entry_point_is_checked=1
}

# stage_to_local_disk: with SLIPWAY_STAGE=1 copy image and data to every node, and use the copies:
# many ranks that open the same files stall a shared disk. A tar is unpacked there. Sets image and
# data.
stage_to_local_disk() {
    local steps=()
    [ "$SLIPWAY_STAGE" = 1 ] || return 0
    if [ "$USE_CONTAINER" = 1 ] && [ -f "$image" ]; then # a sandbox folder is used where it is
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
    cleanup_seconds=${cleanup_seconds:-60} # many files
    log "copying image and data to $scratch on every node (SLIPWAY_STAGE=1)"
    step_on_each_node 3600 bash "$lib/stage.bash" "$scratch" "${steps[@]}" ||
        die staging-failed "image or data could not be copied to every node$step_failure"
}
