#!/usr/bin/env bash
# Train on this machine with PyTorch DDP: torchrun starts one rank per GPU, or two ranks on the CPU.
#
# Start:        jobscripts/ddp.sh [options of the trainer]
# Ranks:        One per GPU that torch can use (per SLIPWAY_DEVICES_PER_RANK GPUs), or two on the
#               CPU if torch can use none; the log shows which. SLIPWAY_RANKS_PER_NODE sets another
#               number, at most that of the GPUs. SLIPWAY_DEVICE=cpu ignores the GPUs.
# Stop:         Ctrl-C, SIGTERM or SIGHUP (the terminal was closed): the ranks save, then end. Or
#               `echo user >RUN_DIR/STOP`.
# Continue:     bash RUN_DIR/job.sh resumes from the newest checkpoint, on any number of ranks, with
#               the settings and arguments of the last start; new arguments replace all old ones.
# Terms:        Each start of the script and each restart of the ranks is an attempt, numbered from
#               1. RUN_DIR/verdict.N is rank 0's one-line record of how attempt N ended, unless it
#               crashed. slipway.Session is a Python class: a script that uses it saves, stops and
#               resumes as the trainer does.
# Restart:      If a rank dies, this script starts all ranks again, at most SLIPWAY_MAX_RESTARTS
#               times.
# Shared disk:  RUN_DIR is SLIPWAY_OUTPUT/ddp-DATE-PID (mode 700): about 80 small files, 10 more per
#               attempt; logs (stderr.log: about 20 MB per attempt at most); and the three newest
#               checkpoints and the best one: 3 or 4 files each, 2 to 4 times the size of the
#               model's weights each (optimizer, --ema-decay). Nothing deletes RUN_DIR: `rm -r
#               RUN_DIR` when the run has ended. With torch.compile, compiled/*.zip, at most 1 GiB
#               per kind of node. Damaged checkpoints stay. Your script can write other files.
# Local disk:   One folder, SLIPWAY_LOCAL_DISK/slipway-DATE-PID.RANDOM (mode 700), for temporary
#               files (TMPDIR) and compiler caches: below 1 MB with configs/digits.toml, more with
#               torch.compile; with SLIPWAY_STAGE=1 also copies of image and data. Removed at the
#               end; after SIGKILL, by the next RUN_DIR/job.sh.
# Memory:       0.4 GB per rank with configs/digits.toml on CPUs; it grows with the model, the data
#               loaders and CUDA.
# Logs:         RUN_DIR/logs/N/stderr.log of attempt N (its first 1 MB and last 9 MB; up to 20 MB
#               while it grows) and RUN_DIR/verdict.N. A line near the end reports the hours used;
#               gpu_usage.py queries the GPUs' driver every 10 s (nice 19). Exit codes: 0 done; 75
#               stopped, can be continued; 78 change the settings first; any other code: failed.
# Needs:        Bash 4.4, GNU coreutils, findutils, diffutils, tar, awk, sed and grep; Apptainer 1.1
#               with USE_CONTAINER=1.
# Privileges:   None: no root, no sudo, no daemon. The script downloads only what you request: data
#               by the trainer's --download, to SLIPWAY_DATA. torchrun listens on a port of this
#               machine (MASTER_PORT), on all interfaces, without authentication.
# Your script:  SLIPWAY_SCRIPT=my_train.py runs it instead of the trainer, with the same launch and
#               with RUN_DIR and DATA set. lib/sitecustomize.py adapts it to the launch: variables
#               and --local-rank as other launchers set them, its process group, Horovod;
#               SLIPWAY_ADAPT=0 disables that (docs/reference/script-environment.md). With
#               slipway.Session it is restarted like the trainer. Without, its launcher's exit code
#               is this script's.
# Generated:    jobgen render jobscripts/specs/ddp-local.toml --site jobscripts/sites/laptop.toml
#                   --output jobscripts/ddp.sh
#               By jobgen 0.1.0. Do not edit: change those two files and run the command again.
set -euo pipefail +o noglob +o allexport
readonly script_name=ddp.sh scheduler=local
# Ignore inherited variables that have the names of this script's own.
unset -v run_dir restarted interactive slurm_record kept_folder kept_settings private_group \
    sigterm_at bound_backends numa_binding site_downloads container_options
# Until catch_signals, SIGUSR1, SIGINT and SIGHUP end the script. A SIGTERM is only recorded: a
# requeued job can receive the one sent to its previous run. In a job that was not requeued,
# check_settings ends the script after one. The time and the SIGTERM are passed to RUN_DIR/job.sh if
# that replaces this script.
end_early() { # CODE SLUG SENTENCE
    echo "$script_name: error[$2]: $3 before training began" >&2 || :
    exit "$1"
}
trap 'end_early 78 time-too-short "the time limit was reached"' USR1
trap 'end_early 75 stopped-early "ended by a signal"' INT HUP
sigterm_at=''
[[ ${slipway_began:-} != "$$ "* ]] || read -r _ SECONDS sigterm_at <<<"$slipway_began"
unset -v slipway_began
trap 'sigterm_at=0' TERM # not $SECONDS: Bash runs a trap after the current command
job_id=$(date +%Y%m%d-%H%M%S)-$$
submit_folder=$PWD
readonly job_id

# refuse_shared OWNER PATH...: fail unless the user, root or OWNER (a UID) owns each PATH and no
# other user can write it: by its mode (w of the group or of all) or by an ACL (a plus in the mode).
# The group may write if it is private. The first PATH is the folder of the others.
refuse_shared() {
    local mode links owner group rest
    ! is_trusted "$2" || return 0
    while read -r mode links owner group rest; do
        case " 0 $EUID $1 /$mode" in
            *" $owner "*/?????-??-*) continue ;;
            *" $owner "*/?????w??-*[!+]) ! is_private "$group" "$owner" || continue ;;
        esac
        echo "$script_name: error[writable-by-others]: other users own or can write a file that" \
            "the job would run or use ($mode $links $owner $group $rest): check it, then" \
            "chmod -R go-w ${2@Q}, or, on a disk with one mode for all files, set" \
            "SLIPWAY_TRUSTED_FOLDER" >&2 || :
        exit 78
    done <<<"$(ls --directory --dereference --numeric-uid-gid --sort=none --time-style=+ \
        -- "${@:2}" 2>&1)"
}

# is_private GROUP USER: succeed if GROUP (a GID) is the private group of USER (a UID): the primary
# group, with the user's name and without other members, and not the primary group of another user
# that `getent passwd` lists within 10 s. Root has none.
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

# is_trusted PATH: succeed if PATH is in SLIPWAY_TRUSTED_FOLDER, which the user declares safe.
is_trusted() {
    local path folder
    [[ ${SLIPWAY_TRUSTED_FOLDER:-} == /?* ]] || return
    folder=$(realpath -- "$SLIPWAY_TRUSTED_FOLDER") && path=$(realpath -- "$1") || return
    [[ $path/ == "$folder"/* ]]
}

# The run folder. Later attempts (a requeue, or `bash RUN_DIR/job.sh`) run the copies of the
# script and the library in it, whatever has changed in the clone.
: "${SLIPWAY_OUTPUT:=runs}"                   # folder of the run folders, shared by all nodes
run_dir=${SLIPWAY_RUN_DIR:-$SLIPWAY_OUTPUT/ddp-$job_id${interactive:+-$(date +%H%M%S)}}
if [ -n "${SLIPWAY_RUN_DIR:-}${restarted-1}" ] && [ -O "$run_dir" ] && [ -O "$run_dir/job.sh" ] &&
    ! [ "$0" -ef "$run_dir/job.sh" ]; then # unless this is that script
    refuse_shared "$EUID" "$run_dir" "$run_dir/job.sh"
    if ! grep --quiet "^readonly script_name=$script_name scheduler=$scheduler$" \
        "$run_dir/job.sh"; then
        echo "$script_name: error[folder-holds-run]: another script began $run_dir: submit" \
            "$run_dir/job.sh to continue it" >&2 || :
        exit 78
    fi
    slipway_began="$$ $SECONDS $sigterm_at" exec bash "$run_dir/job.sh" "$@"
fi

# Settings. A variable that is set at submission takes precedence:
# SLIPWAY_CONFIG=mine.toml bash jobscripts/ddp.sh
: "${USE_CONTAINER:=}"                        # 1: in SLIPWAY_IMAGE; 0: in SLIPWAY_VENV
: "${BACKEND:=ddp}"                           # ddp or horovod
: "${SLIPWAY_IMAGE:=slipway.sif}"             # container image; image_build.job builds it
: "${SLIPWAY_VENV:=.venv}"                    # virtual environment; venv_build.job builds it
: "${SLIPWAY_CONFIG:=configs/digits.toml}"    # configuration file of the trainer
: "${SLIPWAY_SCRIPT:=}"                       # your Python script, instead of the trainer
: "${SLIPWAY_DATA:=}"                         # folder, squashfs, tar or zip; empty: built-in sets
: "${SLIPWAY_DEVICE:=auto}"                   # cuda, cpu, or auto: a GPU if there is one
: "${SLIPWAY_RANKS_PER_NODE:=}"               # empty: as many as the GPUs of the job allow
: "${SLIPWAY_DEVICES_PER_RANK:=}"             # GPUs of each rank, if more than one
: "${SLIPWAY_MAX_RESTARTS:=3}"                # maximum number of restarts per start of the job
: "${SLIPWAY_NOTIFY:=}"                       # program to run at restarts, lost nodes and the end
: "${SLIPWAY_PROFILER:=}"                     # nsys: profile each rank with Nsight Systems
: "${SLIPWAY_LOCAL_DISK:=/tmp}"               # each node's disk for caches, temporary files, copies
: "${SLIPWAY_STAGE:=0}"                       # 1: copy image and data to SLIPWAY_LOCAL_DISK first
: "${SLIPWAY_PREFLIGHT_SECONDS:=60}"          # limit of each step before the launch; copies: 1 h

# Site laptop: launcher, container runtime and environment of its nodes.
launcher=local                                # processes start on this machine
container_runtime=apptainer                   # checked before the launch if USE_CONTAINER=1

# The script library, with the functions called below: SLIPWAY_LIB, or lib beside this script, or
# jobscripts/lib in the folder of submission. It runs only if it belongs to you, to root or to the
# owner of this script (of SLIPWAY_LIB, if set), and no other user can write it.
script=$(realpath -- "$0")
if [ -n "${SLIPWAY_LIB:-}" ]; then
    lib=$SLIPWAY_LIB owner=$lib
elif [ -r "${script%/*}/lib/local.bash" ]; then
    lib=${script%/*}/lib owner=$script
else
    lib=$submit_folder/jobscripts/lib owner=$0
fi
if ! [ -r "$lib/local.bash" ]; then
    echo "$script_name: error[no-library]: no script library in ${lib@Q}: submit in a clone," \
        "or set SLIPWAY_LIB" >&2 || :
    exit 78
fi
lib=$(realpath -- "$lib")
refuse_shared "$(stat --dereference --format=%u -- "$owner" 2>/dev/null)" \
    "$lib" "$lib"/*
source "$lib/local.bash"
source "$lib/apptainer.bash"

choose_container                  # sets USE_CONTAINER if it is empty
check_settings                    # checks each setting; makes paths absolute
check_backend ddp horovod         # values of BACKEND for this script
check_inputs                      # -> image, venv, data; nothing is written before this
find_allocation                   # -> nodes, head_node, cpus ...
open_run_folder                   # -> RUN_DIR, attempt; makes RUN_DIR/logs/ATTEMPT
make_scratch                      # -> scratch: a new private folder on each local disk
stage_to_local_disk               # -> image, data: copies on local disks if SLIPWAY_STAGE=1
build_local_venv                  # -> venv: on each local disk if SLIPWAY_VENV=local
bind_paths=(                      # host paths in the container, besides home and the runtime's own
    "$PWD"
    "$RUN_DIR"
    "$SLIPWAY_LOCAL_DISK"
)
# -> binds: options for these paths, the data, and the configuration or the script's folder
set_binds
container=(apptainer run --no-eval --pwd="$PWD" --nv "${binds[@]}" "$image")
trim_container_command --nv       # empties container with USE_CONTAINER=0; no --nv on CPUs
count_ranks                       # -> ranks_per_node, world_size: one per GPU, or two on CPUs
export_rank_environment           # exports thread counts, cache folders and the plan
choose_program "$@"               # -> program: the trainer or your script
choose_rendezvous                 # exports MASTER_ADDR; each launch exports MASTER_PORT
preflight                         # checks every node before the launch
save_job_script "$@"              # writes RUN_DIR/job.sh, which resumes the run

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

run_attempts "launch_$BACKEND"    # runs the launch; again if ranks or nodes died
finish none                       # exits by the verdict
