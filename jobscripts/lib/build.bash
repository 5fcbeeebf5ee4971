# shellcheck shell=bash
# Jobs that build, on one node, what other jobs run in: the image, or a virtual environment.

# make_build_scratch: a private folder on the local disk, with caches and temporary files, removed
# at the end: nothing of a build is written to the home folder. Sets scratch. From now on a signal
# ends what run_build has started first.
make_build_scratch() {
    unfinished='' build_may_run=''
    [ -w "$SLIPWAY_LOCAL_DISK" ] ||
        die cannot-write \
            "cannot write $SLIPWAY_LOCAL_DISK: set SLIPWAY_LOCAL_DISK to another folder"
    refuse_shared_above "$SLIPWAY_LOCAL_DISK/slipway"
    scratch=$(mktemp --directory -- "$SLIPWAY_LOCAL_DISK/slipway-$job_id.XXXXXXXXXX")
    trap remove_build_scratch EXIT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    trap 'exit 130' INT
    export TMPDIR=$scratch XDG_CACHE_HOME=$scratch/cache PIP_CACHE_DIR=$scratch/pip
}

# remove_build_scratch: at the end, however it comes; the exit code stays.
remove_build_scratch() {
    local code=$?
    trap '' TERM USR1 INT HUP
    terminate_build
    # What an unprivileged build leaves may be locked.
    chmod --recursive u+rwX -- "$scratch" 2>/dev/null || :
    rm -rf -- "$scratch" ${unfinished:+"$unfinished"} || :
    exit "$code"
}

# run_build COMMAND...: in the background, as Bash runs traps only between commands in the
# foreground; in a process group of its own, by timeout(1), which passes SIGTERM on to that.
run_build() {
    local code=0
    build_may_run=1
    timeout --kill-after=10 0 "$@" </dev/null &
    wait $! || code=$?
    kill_build
    build_may_run=''
    return "$code"
}

# terminate_build: what run_build has started would write on, and make removed folders anew. It is
# $!, as in terminate_step. build/image ends what it has started in another session, within 6 s.
terminate_build() {
    [ -n "${build_may_run:-}" ] && [ -n "${!:-}" ] || return 0
    kill -TERM $! 2>/dev/null || :
    wait $! 2>/dev/null || :
    kill_build
}

# kill_build: those of its group that have outlived the first one; for at most 5 s.
kill_build() {
    local look
    for ((look = 0; look < 100; look++)); do
        kill -KILL -- "-${!:-}" 2>/dev/null || return 0
        sleep 0.05
    done
}

# build_image: by Apptainer alone, without root: it gets the base itself, runs apptainer.def, and
# tests the image before that takes the name SLIPWAY_IMAGE, from a folder of its own on the same
# disk, which no other build knows.
build_image() {
    type -P apptainer >/dev/null ||
        die no-container-runtime "no apptainer on $HOSTNAME: load its module"
    [[ $SLIPWAY_IMAGE == /* ]] ||
        die bad-value "SLIPWAY_IMAGE=$SLIPWAY_IMAGE is no file: set it to the one to be made"
    [ ! -e "$SLIPWAY_IMAGE" ] || is_sif "$SLIPWAY_IMAGE" ||
        die file-exists \
            "$SLIPWAY_IMAGE is no image of Apptainer: move it away, or set SLIPWAY_IMAGE to" \
            "another name"
    unfinished=$(mktemp --directory -- "$SLIPWAY_IMAGE.$job_id.XXXXXXXXXX" 2>/dev/null) ||
        die cannot-write \
            "$SLIPWAY_IMAGE: nothing can be written beside it: set SLIPWAY_IMAGE to another path"
    refuse_shared_above "$unfinished"
    SCRATCH=$scratch ROUTES=registry VARIANT=$SLIPWAY_VARIANT BASE_IMAGE=$SLIPWAY_BASE_IMAGE \
        BUILD_ARGS=$SLIPWAY_BUILD_ARGS IMAGE_FOLDER=$unfinished run_build build/image ||
            die build-failed "the image could not be built: see above"
    local built=$unfinished/slipway-$SLIPWAY_VARIANT.sif
    mv --force --no-target-directory -- "$built" "$SLIPWAY_IMAGE" || {
        unfinished='' # the image is whole, and stays
        die cannot-write "$SLIPWAY_IMAGE cannot be replaced; the new image is $built"
    }
    log "$SLIPWAY_IMAGE is ready: SLIPWAY_IMAGE=${SLIPWAY_IMAGE@Q} sbatch jobscripts/ddp.job"
}

# is_sif PATH: whether it is a file of Apptainer's format, whose name stands behind 32 bytes.
is_sif() {
    [ -f "$1" ] &&
        [ "$(head --bytes=41 -- "$1" | tail --bytes=+33 | tr --delete '\0')" = SIF_MAGIC ]
}

# build_venv: under a name of its own, as an environment cannot be moved; tried; and only then does
# the link SLIPWAY_VENV lead to it. So jobs always find a whole one, and those that run keep theirs.
build_venv() {
    local level=train built
    case $SLIPWAY_VENV in
        local | modules | conda:*)
            die bad-value "SLIPWAY_VENV=$SLIPWAY_VENV is no folder: set it to the one to be made" ;;
    esac
    [ ! -e "$SLIPWAY_VENV" ] && [ ! -L "$SLIPWAY_VENV" ] ||
        [[ $(readlink -- "$SLIPWAY_VENV") == "${SLIPWAY_VENV##*/}".2[0-9]* ]] ||
        die file-exists \
            "$SLIPWAY_VENV was not made by this script: move it away, or set SLIPWAY_VENV to" \
            "another name"
    built=$SLIPWAY_VENV.$(date +%Y%m%d-%H%M%S)-$$
    mkdir --parents -- "${built%/*}" ||
        die cannot-write "cannot write ${built%/*}: set SLIPWAY_VENV to another path"
    refuse_shared_above "$built"
    unfinished=$built
    unset -v PYTHONPATH PYTHONHOME PYTHONSTARTUP
    if [ -n "$SLIPWAY_NCCL_PATH" ]; then
        [ -n "${CUDA_HOME:-}" ] ||
            die no-cuda-home "SLIPWAY_NCCL_PATH needs CUDA_HOME: load the module of CUDA, or set it"
        export CUDA_COMPILER='' HOROVOD_NCCL_HOME=$SLIPWAY_NCCL_PATH HOROVOD_CUDA_HOME=$CUDA_HOME
    fi
    [ "$SLIPWAY_HOROVOD" = 0 ] || level=horovod
    PYTHONNOUSERSITE=1 VENV=$built VARIANT=$SLIPWAY_VARIANT WHEELHOUSE=$SLIPWAY_WHEELHOUSE \
        PYTHON=$SLIPWAY_PYTHON run_build build/setup "$level" ||
        die build-failed "the environment could not be built: see above"
    try_venv "$built"
    unfinished='' # from now on it is whole, and stays
    # The link is made where nobody else has a file, on the same disk: so it is exchanged at once.
    ln --symbolic -- "${built##*/}" "$built/.link" &&
        mv --force --no-target-directory -- "$built/.link" "$SLIPWAY_VENV" ||
            die cannot-write "$SLIPWAY_VENV cannot be replaced; the new environment is $built"
    log "$SLIPWAY_VENV is ready: USE_CONTAINER=0 SLIPWAY_VENV=${SLIPWAY_VENV@Q} sbatch" \
        "jobscripts/ddp.job"
    list_older_venvs "$built"
}

# try_venv FOLDER: train a step in it.
try_venv() {
    run_build "$1/bin/trainer" --dry-run --device cpu --output-dir "$scratch/try" \
        >"$scratch/log" 2>&1 ||
        die build-failed "the environment does not work: $(tail --lines=1 "$scratch/log")"
    [ "$SLIPWAY_HOROVOD" = 0 ] ||
        run_build "$1/bin/python" -c 'import horovod.torch' 2>"$scratch/log" ||
        die build-failed "Horovod does not work: $(tail --lines=1 "$scratch/log")"
}

# list_older_venvs NEWEST: those that earlier builds left, for people to remove.
list_older_venvs() {
    local folder older=()
    for folder in "$SLIPWAY_VENV".2*; do
        [ "$folder" = "$1" ] || [ ! -d "$folder" ] || older+=("$folder")
    done
    [ ${#older[@]} -eq 0 ] || log "older ones, to remove when no job runs in them: ${older[*]@Q}"
}
