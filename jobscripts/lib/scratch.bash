# shellcheck shell=bash
# The scratch folder: a private folder on each node's local disk, which is removed at the end.

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
        run_step_on_nodes 0 sh "$lib/make_folder.sh" "$trusted" "$@" || code=$?
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
    run_on_nodes "$1" sh "$lib/remove_folders.sh" "${@:2}"
}

# random_name: print 16 random hexadecimal digits.
random_name() {
    od --address-radix=n --format=x8 --read-bytes=8 /dev/urandom | tr --delete ' '
}

# remove_scratch: remove the scratch folder on every node, and the attempt's containers on this one.
# If that fails, remove it at least on this node; the processes of start_scratch_watch may remove it
# on the others. If nodes were left out, these processes or a later attempt remove it there: the
# record stays. In an interactive job the allocation outlives this script, so they are stopped. A
# failure here changes neither the exit code nor a requeue.
remove_scratch() {
    local path=${scratch:-}
    [ -n "$path" ] || return 0
    scratch=''
    ! declare -F remove_containers >/dev/null || remove_containers "$path" || :
    [ -z "${scratch_record:-}" ] || echo "job $job_id has ended" >>"$scratch_record" || :
    if remove_on_each_node "${cleanup_seconds:-20}" "$path" 2>/dev/null &&
        ! nodes_are_left_out; then
        rm -f -- ${scratch_record:+"$scratch_record"} # a later attempt has nothing to remove
        stop_scratch_watch
        return 0
    fi
    [ -z "${interactive:-}" ] || stop_scratch_watch
    timeout 20 sh "$lib/remove_folders.sh" "$path" &&
        { [ "$nnodes" = 1 ] || scratch_watch_runs; } ||
        warn scratch-left "$path remains on each node where it could not be removed"
}
