# shellcheck shell=bash
# Jobs that build, on one node, the image or the virtual environment in which other jobs run.

# make_build_scratch: make a private folder on the local disk for caches and temporary files, so
# that a build writes nothing to the home folder. It is removed at the end. Sets scratch. From now
# on a signal ends the process that run_build has started before this script.
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

# remove_build_scratch: clean up when the script exits, and keep the exit code.
remove_build_scratch() {
    local code=$?
    trap '' TERM USR1 INT HUP
    terminate_build
    # An unprivileged build can leave folders without write permission.
    chmod --recursive u+rwX -- "$scratch" 2>/dev/null || :
    rm -rf -- "$scratch" ${unfinished:+"$unfinished"} || :
    exit "$code"
}

# run_build COMMAND...: run the command in the background, because Bash runs traps only between
# foreground commands. timeout(1) puts it in a separate process group and forwards SIGTERM to that.
# Returns the exit code.
run_build() {
    local code=0
    build_may_run=1
    timeout --kill-after=10 0 "$@" </dev/null &
    wait $! || code=$?
    kill_build
    build_may_run=''
    return "$code"
}

# terminate_build: end the process that run_build has started, which would otherwise continue to
# write and recreate removed folders. It uses $!, like terminate_step. build/image ends its
# processes in another session within 6 s.
terminate_build() {
    [ -n "${build_may_run:-}" ] && [ -n "${!:-}" ] || return 0
    kill -TERM $! 2>/dev/null || :
    wait $! 2>/dev/null || :
    kill_build
}

# kill_build: kill the remaining processes of the build's process group, trying for up to 5 s.
kill_build() {
    local look
    for ((look = 0; look < 100; look++)); do
        kill -KILL -- "-${!:-}" 2>/dev/null || return 0
        sleep 0.05
    done
}

# build_image: build the image with Apptainer, without root: download the base image, run
# apptainer.def and test the result. Only then is the image moved to SLIPWAY_IMAGE. It is built in a
# new folder on the same disk, so that concurrent builds do not collide.
build_image() {
    type -P apptainer >/dev/null ||
        die no-container-runtime "no apptainer on $HOSTNAME: load its module"
    [[ $SLIPWAY_IMAGE == /* ]] ||
        die bad-value "SLIPWAY_IMAGE=$SLIPWAY_IMAGE is not a path: set it to the file to be built"
    [ ! -e "$SLIPWAY_IMAGE" ] || is_sif "$SLIPWAY_IMAGE" ||
        die file-exists \
            "$SLIPWAY_IMAGE exists and is not an Apptainer image: move it away, or set" \
            "SLIPWAY_IMAGE to another name"
    unfinished=$(mktemp --directory -- "$SLIPWAY_IMAGE.$job_id.XXXXXXXXXX" 2>/dev/null) ||
        die cannot-write \
            "cannot write to the folder of $SLIPWAY_IMAGE: set SLIPWAY_IMAGE to another path"
    refuse_shared_above "$unfinished"
    SCRATCH=$scratch ROUTES=registry VARIANT=$SLIPWAY_VARIANT BASE_IMAGE=$SLIPWAY_BASE_IMAGE \
        BUILD_ARGS=$SLIPWAY_BUILD_ARGS IMAGE_FOLDER=$unfinished run_build build/image ||
            die build-failed "cannot build the image: see above"
    local built=$unfinished/slipway-$SLIPWAY_VARIANT.sif
    mv --force --no-target-directory -- "$built" "$SLIPWAY_IMAGE" || {
        unfinished='' # the image is complete: do not remove it
        die cannot-write "cannot replace $SLIPWAY_IMAGE by the new image, which is $built"
    }
    log "$SLIPWAY_IMAGE is ready: SLIPWAY_IMAGE=${SLIPWAY_IMAGE@Q} $(training_command)"
}

# training_command: print the command that submits the example, with settings of the environment.
training_command() {
    case $scheduler in
        slurm) echo 'sbatch jobscripts/ddp.job' ;;
        pbs) echo 'qsub -V jobscripts/ddp.pbs' ;; # without -V, PBS does not pass the settings on
        *) echo 'bash jobscripts/ddp.sh' ;;
    esac
}

# is_sif PATH: return 0 if PATH is a file in Apptainer's format SIF, whose magic string follows 32
# bytes.
is_sif() {
    [ -f "$1" ] &&
        [ "$(head --bytes=41 -- "$1" | tail --bytes=+33 | tr --delete '\0')" = SIF_MAGIC ]
}

# build_venv: build a virtual environment in a new folder, as an environment cannot be moved, and
# test it. Only then is the link SLIPWAY_VENV changed to it. So jobs always find a complete
# environment, and running jobs keep theirs.
build_venv() {
    local level=train built
    case $SLIPWAY_VENV in
        local | modules | conda:*)
            die bad-value "SLIPWAY_VENV=$SLIPWAY_VENV is not a path: set it to a new folder" ;;
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
            die no-cuda-home "SLIPWAY_NCCL_PATH needs CUDA_HOME: load the CUDA module, or set it"
        export CUDA_COMPILER='' HOROVOD_NCCL_HOME=$SLIPWAY_NCCL_PATH HOROVOD_CUDA_HOME=$CUDA_HOME
    fi
    [ "$SLIPWAY_HOROVOD" = 0 ] || level=horovod
    PYTHONNOUSERSITE=1 VENV=$built VARIANT=$SLIPWAY_VARIANT WHEELHOUSE=$SLIPWAY_WHEELHOUSE \
        PYTHON=$SLIPWAY_PYTHON run_build build/setup "$level" ||
        die build-failed "cannot build the environment: see above"
    try_venv "$built"
    unfinished='' # the environment is complete: do not remove it
    # Make the link in the new folder, on the same disk, so that mv replaces the old one atomically.
    ln --symbolic -- "${built##*/}" "$built/.link" &&
        mv --force --no-target-directory -- "$built/.link" "$SLIPWAY_VENV" ||
            die cannot-write "cannot replace $SLIPWAY_VENV by the new environment $built"
    log "$SLIPWAY_VENV is ready: USE_CONTAINER=0 SLIPWAY_VENV=${SLIPWAY_VENV@Q}" \
        "$(training_command)"
    list_older_venvs "$built"
}

# try_venv FOLDER: test the environment by one training step. Fails if it does not work.
try_venv() {
    run_build "$1/bin/trainer" --dry-run --device cpu --output-dir "$scratch/try" \
        >"$scratch/log" 2>&1 ||
        die build-failed "the environment does not work: $(tail --lines=1 "$scratch/log")"
    [ "$SLIPWAY_HOROVOD" = 0 ] ||
        run_build "$1/bin/python" -c 'import horovod.torch' 2>"$scratch/log" ||
        die build-failed "Horovod does not work: $(tail --lines=1 "$scratch/log")"
}

# list_older_venvs NEWEST: log the environments of earlier builds, which users remove themselves.
list_older_venvs() {
    local folder older=()
    for folder in "$SLIPWAY_VENV".2*; do
        [ "$folder" = "$1" ] || [ ! -d "$folder" ] || older+=("$folder")
    done
    [ ${#older[@]} -eq 0 ] || log "older environments (remove them when unused): ${older[*]@Q}"
}
