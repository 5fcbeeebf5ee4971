# shellcheck shell=bash
# What a job needs where its processes run: its inputs, the words of the container before each
# command, and what is on the local disks of the nodes. The container runtimes have files of their
# own, with check_image, image_runs and set_container.

# check_inputs: fails if the environment, or what is to be trained, is missing. Nothing has been
# written yet. Sets image, venv and data, the paths that are used: the settings, unless copies on
# the local disk take their place.
check_inputs() {
    image=$SLIPWAY_IMAGE
    data=$SLIPWAY_DATA
    case $USE_CONTAINER in
        1) check_image ;;
        0) find_python ;;
    esac
    if [ -n "$SLIPWAY_SCRIPT" ]; then
        require file SLIPWAY_SCRIPT
    else
        require file SLIPWAY_CONFIG
    fi
    [ -z "$SLIPWAY_DATA" ] || require 'file or folder' SLIPWAY_DATA
    require folder SLIPWAY_LOCAL_DISK
}

# make_scratch: a new folder on the local disk of every node, for caches and copies, which only the
# job's owner may enter: whoever else could write there could put code into the caches. Sets
# scratch. It goes at the end of the job.
make_scratch() {
    scratch=$SLIPWAY_LOCAL_DISK/slipway-$scratch_id.$(random_name)
    printf '%s\n' "$scratch" >"$log_dir/scratch"
    trap end_job EXIT
    make_folder_on_each_node "$scratch" ||
        die "no folder could be made in $SLIPWAY_LOCAL_DISK of every node within" \
            "SLIPWAY_PREFLIGHT_SECONDS ($SLIPWAY_PREFLIGHT_SECONDS): see above"
    remove_old_scratch
}

# make_folder_on_each_node PATH: once more where the launcher was killed for taking too long, as
# Open MPI 5 hangs now and then before it starts anything (docs/decisions/0007). The second try
# finds the folder where the first has made it, as does the second of two Dask workers on one node:
# not a link, which others could make once the name is known.
make_folder_on_each_node() {
    local try code
    for try in 1 2; do
        code=0
        # shellcheck disable=SC2016 # for the shell on the node
        on_each_node "$SLIPWAY_PREFLIGHT_SECONDS" sh -c \
            'mkdir -m 700 -- "$1" 2>/dev/null || { [ -d "$1" ] && [ -O "$1" ] && [ ! -L "$1" ]; } ||
            mkdir -m 700 -- "$1"' sh "$1" || code=$?
        [ "$code" = 124 ] || [ "$code" = 137 ] || break # as timeout(1) ends
        [ "$try" = 2 ] || note "the nodes do not answer within SLIPWAY_PREFLIGHT_SECONDS: once more"
    done
    return "$code"
}

# remove_old_scratch: the folders of earlier attempts of this run, which stay where a node died, and
# after scancel. Not those of another job that still runs, and only what has our own names.
remove_old_scratch() {
    local folder path job old=()
    for folder in "$RUN_DIR"/logs/*/; do
        [ -f "$folder/job" ] && [ -f "$folder/scratch" ] || continue
        read -r _ job <"$folder/job" || :
        read -r path <"$folder/scratch" || :
        [[ $path =~ /slipway-[^/]+\.[0-9a-f]{16}$ ]] && [ "$path" != "$scratch" ] || continue
        [ "$job" = "$job_id" ] || job_is_over "$job" || continue
        old+=("$path")
    done
    [ ${#old[@]} -eq 0 ] ||
        on_each_node 60 rm -rf -- "${old[@]}" ||
        note "old folders stay: ${old[*]}"
}

# random_name: 16 hexadecimal digits.
random_name() {
    od --address-radix=n --format=x8 --read-bytes=8 /dev/urandom | tr --delete ' '
}

# remove_scratch: on every node. Where that fails, on this one at least; neither exit code nor
# requeue change.
remove_scratch() {
    local path=${scratch:-}
    [ -n "$path" ] || return 0
    scratch=''
    if on_each_node "${cleanup_seconds:-20}" rm -rf -- "$path" 2>/dev/null; then
        rm -f -- "$log_dir/scratch" # nothing for a later attempt to look after
        return 0
    fi
    timeout 20 rm -rf -- "$path" && [ "$nnodes" = 1 ] ||
        note "$path stays on each node where it could not be removed"
}

# use_container GPU_OPTION... [-- PATH...]: the words before each command. PATH is what the
# container needs to see besides the job's own files. Reads container_options, where the site has
# any. Sets container and bind_paths.
# shellcheck disable=SC2120 # a runtime without GPU options is called without arguments
use_container() {
    local path gpu_options=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        gpu_options+=("$1")
        shift
    done
    container=()
    bind_paths=("$PWD" "$RUN_DIR" "$SLIPWAY_LOCAL_DISK" "${@:2}")
    if [ -n "$SLIPWAY_SCRIPT" ]; then
        bind_paths+=("$SLIPWAY_SCRIPT" "$(dirname -- "$SLIPWAY_SCRIPT")")
    else
        bind_paths+=("$SLIPWAY_CONFIG")
    fi
    [ -z "$data" ] || bind_paths+=("$data")
    for path in "${bind_paths[@]}"; do
        [ -r "$path" ] ||
            die "$path is missing or cannot be read, and the job needs it: see the binds in this" \
                "script"
    done
    [ "$USE_CONTAINER" = 1 ] || return 0
    [ "$SLIPWAY_DEVICE" != cpu ] || gpu_options=() # else says nothing where there is no GPU
    # shellcheck disable=SC2154 # the site's lines assign it, if at all
    set_container ${container_options[0]:+"${container_options[@]}"} "${gpu_options[@]}"
}

# stage_to_local_disk: with SLIPWAY_STAGE=1 copy image and data to every node, and use the copies:
# many ranks that open the same files stall a shared disk. Sets image and data.
stage_to_local_disk() {
    local pairs=()
    [ "$SLIPWAY_STAGE" = 1 ] || return 0
    if [ "$USE_CONTAINER" = 1 ] && [ -f "$image" ]; then # a sandbox folder is used where it is
        pairs+=("$image" "$scratch/image")
        image=$scratch/image/${image##*/}
    fi
    if [ -n "$data" ]; then
        pairs+=("$data" "$scratch/data")
        data=$scratch/data/${data##*/}
    fi
    [ ${#pairs[@]} -gt 0 ] || return 0
    cleanup_seconds=${cleanup_seconds:-60} # many files
    note "copying image and data to $scratch on every node (SLIPWAY_STAGE=1)"
    on_each_node 3600 sh "$lib/stage.sh" "$scratch" "${pairs[@]}" ||
        die "image or data could not be copied to every node: see above"
}
