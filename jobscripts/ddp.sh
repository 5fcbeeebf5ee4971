#!/usr/bin/env bash
# Train on this machine: torchrun starts the ranks, one for each GPU, or two on the CPU (PyTorch
# DDP).
#
# Start:        jobscripts/ddp.sh [options of the trainer]
# Ranks:        One for each GPU that the torch of the image or environment can use (for each
#               SLIPWAY_DEVICES_PER_RANK of them), or two on the CPU if it can use none; a line says
#               which. SLIPWAY_RANKS_PER_NODE sets another number; more than there are GPUs are
#               refused. SLIPWAY_DEVICE=cpu leaves the GPUs alone.
# Stop:         Ctrl-C, SIGTERM or SIGHUP (the terminal is closed): the ranks save, then end. Or
#               `echo user >RUN_DIR/STOP`.
# Continue:     bash RUN_DIR/job.sh: from the newest checkpoint, with the settings and arguments
#               kept there unless others are given now, on any number of ranks.
# Restart:      After the death of a rank all ranks are started again, at most SLIPWAY_MAX_RESTARTS
#               times.
# Shared disk:  Files go to RUN_DIR, which is SLIPWAY_OUTPUT/ddp-DATE-PID (mode 700): about 70 small
#               ones, 10 more for each attempt, logs, and the checkpoints: the three newest and the
#               best, each of 3 or 4 files, together at most 4 times the size of the model's
#               weights. A script of your own writes what it likes.
# Local disk:   One folder, SLIPWAY_LOCAL_DISK/slipway-DATE-PID.RANDOM (mode 700): the compilers'
#               caches, temporary files (TMPDIR), and with SLIPWAY_STAGE=1 copies of image and data.
#               Removed at the end; after SIGKILL when RUN_DIR/job.sh runs again.
# Logs:         RUN_DIR/logs/ATTEMPT/stderr.log (its first 1 MB and last 9 MB; up to 20 MB while it
#               grows) and RUN_DIR/verdict.ATTEMPT. The last line says what the attempt has used;
#               for that watch_gpus.sh asks the driver every 10 s how busy its GPUs are. Exit codes:
#               0 done; 75 stopped, and can be continued; 78 settings must be changed first; else
#               failed.
# Privileges:   None: no root, no sudo, no daemon. It downloads only what you name: data by the
#               trainer's --download, an image that has a registry's name. torchrun listens on a
#               port of this machine (MASTER_PORT), on all interfaces, without authentication.
# Your script:  SLIPWAY_SCRIPT=my_train.py runs it in place of the trainer, launched alike, with
#               RUN_DIR and DATA set; lib/sitecustomize.py fits scripts of other launchers to that,
#               and SLIPWAY_ADAPT=0 switches it off (docs/guide.md). With slipway.Session it is
#               restarted like the trainer. Without, its launcher's exit code is this script's.
# Generated:    jobgen render jobscripts/specs/ddp-local.toml --site jobscripts/sites/laptop.toml
#                   --output jobscripts/ddp.sh
#               By jobgen 0.1.0. Do not edit: change those two files, and run it again.
set -euo pipefail +o noglob +o allexport
readonly script_name=ddp.sh scheduler=local
# Not what the environment holds under names that this script may leave unset.
unset -v run_dir restarted interactive slurm_record kept_folder kept_settings private_group \
    sigterm_at bound_backends numa_binding site_downloads container_options
# Until catch_signals a signal ends the script, and a SIGTERM is noted, as in a requeued job it can
# be for the earlier run; so is the time, for the script that goes on as job.sh.
end_early() { # CODE SLUG SENTENCE
    echo "$script_name: error[$2]: $3 before training began" >&2 || :
    exit "$1"
}
trap 'end_early 78 time-too-short "the time limit came"' USR1
trap 'end_early 75 stopped-early "ended by a signal"' INT HUP
sigterm_at=''
[[ ${slipway_began:-} != "$$ "* ]] || read -r _ SECONDS sigterm_at <<<"$slipway_began"
unset -v slipway_began
trap 'sigterm_at=0' TERM # not $SECONDS: it runs when what the script waits for has ended
job_id=$(date +%Y%m%d-%H%M%S)-$$
submit_folder=$PWD
readonly job_id

# refuse_shared OWNER PATH...: fails unless the user, root or OWNER (a number) owns each PATH, and
# nobody else may write it by its mode (w of the group, w of all) or an ACL (a plus), but a private
# group. The first PATH holds the others.
refuse_shared() {
    local mode links owner group rest
    ! is_trusted "$2" || return 0
    while read -r mode links owner group rest; do
        case " 0 $EUID $1 /$mode" in
            *" $owner "*/?????-??-*) continue ;;
            *" $owner "*/?????w??-*[!+]) ! is_private "$group" "$owner" || continue ;;
        esac
        echo "$script_name: error[writable-by-others]: others own or can write this, which would" \
            "be run or used ($mode $links $owner $group $rest): look into it, then chmod -R go-w" \
            "${2@Q}, or, on a disk with one mode for all files, set SLIPWAY_TRUSTED_FOLDER" >&2 || :
        exit 78
    done <<<"$(ls --directory --dereference --numeric-uid-gid --sort=none --time-style=+ \
        -- "${@:2}" 2>&1)"
}

# is_private GROUP USER: whether the group (numbers) is the user's own: its primary group, of the
# same name, without another member, and not the primary group of another user, as far as `getent
# passwd` lists users within 10 s. Root has none.
is_private() {
    local name group
    [ "${private_group:-}" != "$1 $2" ] || return 0
    IFS=: read -r name _ _ group _ <<<"$(getent passwd "$2")"
    [ "$2" != 0 ] && [ "$group" = "$1" ] &&
        [[ $(getent group "$1") =~ ^"$name":[^:]*:"$1":("$name")?$ ]] &&
        { timeout 10 getent passwd || :; } | awk -F: -v group="$1" -v user="$2" \
            '$4 == group && $3 != user { found = 1 } END { exit found }' &&
        private_group="$1 $2"
}

# is_trusted PATH: whether it is in SLIPWAY_TRUSTED_FOLDER, where the user answers for who writes.
is_trusted() {
    local path folder
    [[ ${SLIPWAY_TRUSTED_FOLDER:-} == /?* ]] || return
    folder=$(realpath -- "$SLIPWAY_TRUSTED_FOLDER") && path=$(realpath -- "$1") || return
    [[ $path/ == "$folder"/* ]]
}

# The run folder. A later attempt, a requeue or `bash RUN_DIR/job.sh`, runs the script and the
# library that are kept there, whatever has changed here since.
: "${SLIPWAY_OUTPUT:=runs}"                   # run folders are made here; all nodes share it
run_dir=${SLIPWAY_RUN_DIR:-$SLIPWAY_OUTPUT/ddp-$job_id${interactive:+-$(date +%H%M%S)}}
if [ -n "${SLIPWAY_RUN_DIR:-}${restarted-1}" ] && [ -O "$run_dir" ] && [ -O "$run_dir/job.sh" ] &&
    ! [ "$0" -ef "$run_dir/job.sh" ]; then # it is not that script already
    refuse_shared "$EUID" "$run_dir" "$run_dir/job.sh"
    if ! grep --quiet "^readonly script_name=$script_name scheduler=$scheduler$" \
        "$run_dir/job.sh"; then
        echo "$script_name: error[folder-holds-run]: another script began $run_dir: submit its" \
            "job.sh to continue it" >&2 || :
        exit 78
    fi
    slipway_began="$$ $SECONDS $sigterm_at" exec bash "$run_dir/job.sh" "$@"
fi

# Settings. Set at submission, a variable wins:
# SLIPWAY_CONFIG=mine.toml bash jobscripts/ddp.sh
: "${USE_CONTAINER:=}"                        # 1: in SLIPWAY_IMAGE; 0: in SLIPWAY_VENV
: "${BACKEND:=ddp}"                           # ddp or horovod
: "${SLIPWAY_IMAGE:=slipway.sif}"             # container image; image_build.job builds it
: "${SLIPWAY_VENV:=.venv}"                    # virtual environment; venv_build.job builds it
: "${SLIPWAY_CONFIG:=configs/digits.toml}"    # configuration file of the trainer
: "${SLIPWAY_SCRIPT:=}"                       # your Python script, instead of the trainer
: "${SLIPWAY_DATA:=}"                         # folder, squashfs image or tar; empty: built-in sets
: "${SLIPWAY_DEVICE:=auto}"                   # cuda, cpu, or auto: a GPU if there is one
: "${SLIPWAY_RANKS_PER_NODE:=}"               # empty: as many as the GPUs of the job allow
: "${SLIPWAY_DEVICES_PER_RANK:=}"             # GPUs of each rank, if more than one
: "${SLIPWAY_MAX_RESTARTS:=3}"                # maximum number of restarts within a job
: "${SLIPWAY_NOTIFY:=}"                       # program to run at restarts and at the end
: "${SLIPWAY_PROFILER:=}"                     # nsys: profile each rank with Nsight Systems
: "${SLIPWAY_LOCAL_DISK:=/tmp}"               # each node's disk for caches, temporary files, copies
: "${SLIPWAY_STAGE:=0}"                       # 1: copy image and data to SLIPWAY_LOCAL_DISK first
: "${SLIPWAY_PREFLIGHT_SECONDS:=60}"          # time limit of the preflight; more for slow disks

# The site, laptop. Exports that its nodes need stand here; set outside, a variable wins.
launcher=local                                # processes start here
container_runtime=apptainer                   # runs SLIPWAY_IMAGE where USE_CONTAINER is 1

# The functions called below are in SLIPWAY_LIB, in lib beside this script, or in jobscripts/lib of
# the folder of submission. They run only if they belong to you, to root or to the owner of what you
# named (this script, SLIPWAY_LIB), and no other user can write them.
script=$(realpath -- "$0")
if [ -n "${SLIPWAY_LIB:-}" ]; then
    lib=$SLIPWAY_LIB owner=$lib
elif [ -r "${script%/*}/lib/local.bash" ]; then
    lib=${script%/*}/lib owner=$script
else
    lib=$submit_folder/jobscripts/lib owner=$0
fi
if ! [ -r "$lib/local.bash" ]; then
    echo "$script_name: error[no-library]: no library in ${lib@Q}: submit in a clone, or set" \
        "SLIPWAY_LIB" >&2 || :
    exit 78
fi
lib=$(realpath -- "$lib")
refuse_shared "$(stat --dereference --format=%u -- "$owner" 2>/dev/null)" \
    "$lib" "$lib"/*
source "$lib/local.bash"
source "$lib/apptainer.bash"

choose_container                  # USE_CONTAINER, where it is empty
check_settings                    # every setting by its pattern; makes paths absolute
check_backend ddp horovod         # what BACKEND can be in this script
check_inputs                      # -> image, venv, data; nothing has been written before
find_allocation                   # -> nodes, head_node, cpus ...
open_run_folder                   # -> RUN_DIR, attempt; makes RUN_DIR/logs/ATTEMPT
make_scratch                      # -> scratch: a new private folder on each local disk
stage_to_local_disk               # -> image, data: copies there, with SLIPWAY_STAGE=1 only
build_local_venv                  # -> venv: made on each local disk, with SLIPWAY_VENV=local only
bind_paths=(                      # paths of the host that the container sees under the same names
    "$PWD"
    "$RUN_DIR"
    "$SLIPWAY_LOCAL_DISK"
)
# -> binds: options for these paths, the script or configuration, and the data
set_binds
container=(apptainer run --no-eval --pwd="$PWD" --nv "${binds[@]}" "$image")
use_container --nv                # empties container with USE_CONTAINER=0; no --nv on CPUs
count_ranks                       # -> ranks_per_node, world_size: one a GPU, or two on the CPU
export_rank_environment           # exports threads, cache folders and the plan to the ranks
choose_program "$@"               # -> program: the trainer, or your script
choose_rendezvous                 # exports where the ranks meet: MASTER_ADDR, MASTER_PORT
preflight                         # a short step on every node that finds what is wrong
save_job_script "$@"              # writes RUN_DIR/job.sh, which continues the run

# BACKEND=ddp, outermost first: launcher; on each node container, torchrun, ranks.
launch_ddp() {
    record_pid
    exec \
        "${container[@]}" \
        sh "$lib/watch_gpus.sh" "$SLIPWAY_DEVICE" \
        torchrun --nnodes="$nnodes" --nproc-per-node="$ranks_per_node" \
            --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --rdzv-id="$launch_id" \
            --log-dir="$scratch/torchrun" \
        "${program[@]}"
}

# BACKEND=horovod, outermost first: launcher; a container per rank, numbered by name_rank.sh.
launch_horovod() {
    record_pid
    exec \
        bash "$lib/rank_loop.bash" \
        "${container[@]}" \
        sh "$lib/watch_gpus.sh" "$SLIPWAY_DEVICE" \
        python3 "${program[@]}"
}

run_attempts "launch_$BACKEND"    # the launch, until it ends; again if ranks or nodes have died
finish none                       # exit code by the verdict
