#!/usr/bin/env bash
# Train on this machine: torchrun starts the ranks, each with a GPU or with its share of the cores (PyTorch DDP).
# Use: jobscripts/ddp.sh [options of the trainer]
# Do not edit: it is made from the two files named here, by jobgen render jobscripts/specs/ddp-local.toml --site jobscripts/sites/laptop.toml --output jobscripts/ddp.sh
set -euo pipefail
die() { echo "ddp.sh: $*" >&2; exit 78; } # 78: trying again unchanged cannot help

# Settings: a variable of the same name in the environment wins.
: "${RANKS_PER_NODE:=2}"                      # each on a GPU, or on its share of the cores
: "${IMAGE:=slipway.sif}"                     # image_build.job makes it
: "${VENV:=.venv}"                            # venv_build.job makes it, or on a laptop `make setup`
: "${CONFIG:=configs/digits.toml}"            # what is trained, and how
: "${TRAIN_SCRIPT:=}"                         # run this Python script instead of the trainer
: "${DATA:=}"                                 # the trainer's --data-dir; none for sets that it brings along
: "${OUTPUT:=runs}"                           # run folders are made here; on a disk that all nodes share
: "${DEVICE:=auto}"                           # cuda, cpu, or auto: a GPU where there is one
: "${LOCAL_DISK:=/tmp}"                       # of each node: caches, and copies if STAGE=1
: "${STAGE:=0}"                               # 1: copy image and data to LOCAL_DISK first
if [ -z "${USE_CONTAINER:-}" ]; then
    USE_CONTAINER=0
    if [ ! -r "$IMAGE" ]; then echo "ddp.sh: no $IMAGE, so in $VENV; \`make image\` builds one"
    elif ! apptainer exec "$IMAGE" true; then echo "ddp.sh: apptainer cannot run $IMAGE here (see above), so in $VENV"
    else USE_CONTAINER=1; echo "ddp.sh: in $IMAGE; USE_CONTAINER=0 runs in $VENV"; fi
fi

# Where am I? Paths become absolute, as they are the same inside the container.
job_id=$(date +%Y%m%d-%H%M%S)-$$ nodes=(127.0.0.1) nnodes=1 restarts=0
scratch=$(mktemp --dry-run -- "$LOCAL_DISK/slipway-$job_id.XXXXXXXXXX")
: "${RUN_DIR:=$OUTPUT/ddp-$job_id}"
per_node=()
(umask 077 && mkdir --parents "$RUN_DIR/logs") && [ -w "$RUN_DIR" ] || die "cannot write $RUN_DIR: set OUTPUT to a folder of all nodes"
for name in IMAGE VENV CONFIG TRAIN_SCRIPT DATA RUN_DIR; do
    [[ ${!name} != *$'\n'* ]] || die "$name holds a line break: rename it"
    [ -z "${!name}" ] || printf -v "$name" %s "$(realpath --canonicalize-missing -- "${!name}")"
done
given='' && for name in RANKS_PER_NODE IMAGE VENV CONFIG TRAIN_SCRIPT DATA OUTPUT DEVICE LOCAL_DISK STAGE RUN_DIR; do given+="$name=$(printf %q "${!name-}") "; done

# What ranks are told: nothing of this shell's Python, and the plan to compare with.
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP && export PYTHONNOUSERSITE=1 # ~/.local was made for another Python
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((($(nproc) + RANKS_PER_NODE - 1) / RANKS_PER_NODE))}" TRITON_CACHE_DIR=$scratch/triton TORCHINDUCTOR_CACHE_DIR=$scratch/inductor CUDA_CACHE_PATH=$scratch/nv
export RUN_DIR DATA TRAINER_JOB_ID=$job_id TRAINER_ATTEMPT=$((restarts + 1)) TRAINER_WORLD_SIZE=$((nnodes * RANKS_PER_NODE)) TRAINER_RANKS_PER_NODE=$RANKS_PER_NODE

# The wrapper: USE_CONTAINER=0 takes away a prefix and changes nothing else.
case $USE_CONTAINER in 1) VENV='' ;; 0) IMAGE='' PATH=$VENV/bin:$PATH ;; *) die "USE_CONTAINER is $USE_CONTAINER: set it to 0 or 1" ;; esac
clean() { timeout --kill-after=5 20 "${per_node[@]}" rm --recursive --force -- "$scratch" || rm --recursive --force -- "$scratch"; }
trap clean EXIT && trap 'die "the time limit came before training began: give it more time"' USR1
[ -z "$IMAGE" ] || command -v apptainer >/dev/null || die "no apptainer on $HOSTNAME: load its module, or set USE_CONTAINER=0"
options=() needed=("$PWD" "$RUN_DIR" "$LOCAL_DISK" "${TRAIN_SCRIPT:-$CONFIG}" ${TRAIN_SCRIPT:+"${TRAIN_SCRIPT%/*}"} ${DATA:+"$DATA"})
for path in "${needed[@]}" "${IMAGE:-$VENV/bin/python}"; do # bound by --mount, for --bind splits at colons and commas
    [ -r "$path" ] || die "$path is missing: see the settings in this script (image_build.job makes IMAGE, venv_build.job VENV)"
    options+=(--mount "type=bind,\"source=${path//\"/\"\"}\",\"destination=${path//\"/\"\"}\"")
done
[ "$DEVICE" = cpu ] || options+=(--nv) # says nothing where there is no GPU
if [ "$STAGE" = 1 ] && [ -n "$IMAGE$DATA" ]; then # one copy per node: ranks that all open the same files stall a shared disk
    size=$(du --dereference --summarize --total --block-size=1K -- ${IMAGE:+"$IMAGE"} ${DATA:+"$DATA"} | tail --lines=1 | cut --fields=1)
    "${per_node[@]}" bash -c '[ "$(df --output=avail --block-size=1K -- "${2%/*}" | tail --lines=1)" -gt "$1" ] || { echo "$HOSTNAME: ${2%/*} is too small" >&2 && exit 1; }
        umask 077 && mkdir --parents -- "$2" && cp --recursive --dereference --no-preserve=mode -- "${@:3}" "$2"' stage "$size" "$scratch" ${IMAGE:+"$IMAGE"} ${DATA:+"$DATA"} || die "STAGE: see above"
    IMAGE=${IMAGE:+$scratch/${IMAGE##*/}} DATA=${DATA:+$scratch/${DATA##*/}}
fi
container=(${IMAGE:+apptainer run --no-eval "${options[@]}" --pwd="$PWD" "$IMAGE"})

# What runs; and first, on every node, a short step that finds what would go wrong.
arguments=("$CONFIG" --backend ddp --device "$DEVICE" --output-dir "$RUN_DIR" --resume auto ${DATA:+--data-dir "$DATA"} "$@")
payload=(-m trainer "${arguments[@]}") check=(python -m trainer.preflight "${arguments[@]}")
[ -z "$TRAIN_SCRIPT" ] || payload=("$TRAIN_SCRIPT" "$@") check=(bash -c 'ls --directory -- "$@" >/dev/null' ls "${needed[@]}")
read -r MASTER_ADDR _ < <(getent ahosts "${nodes[0]}") && [[ $nnodes = 1 || $MASTER_ADDR != @(127.*|::1) ]] ||
    die "${nodes[0]} resolves to ${MASTER_ADDR:-nothing} here, where no other node can reach it: the site must mend its hosts"
export MASTER_ADDR MASTER_PORT=$((20000 + $$ % 10000)) # differs from job to job; clients get 32768 and up
timeout --kill-after=5 "${PREFLIGHT_SECONDS:=60}" "${per_node[@]}" "${container[@]}" "${check[@]}" || die "not every node was ready within $PREFLIGHT_SECONDS s: see above"

# One launch, in the background, so that traps run while it does.
[ "$0" -ef "$RUN_DIR/job.sh" ] || cp -- "$0" "$RUN_DIR/job.sh"
[ ! -e "$RUN_DIR/status.json" ] || mv --force -- "$RUN_DIR/status.json" "$RUN_DIR/status.previous.json"
errors=$RUN_DIR/logs/stderr.$TRAINER_ATTEMPT.log code=1
trap 'interrupted=1 && kill -TERM "$step"' TERM INT # the ranks save, then end
launch() { # its errors go to a file, and from there, as they come, to the job's log
    "${per_node[@]}" "${container[@]}" \
        torchrun --nnodes="$nnodes" --nproc-per-node="$RANKS_PER_NODE" --rdzv-id="$job_id" --rdzv-backend=c10d --rdzv-endpoint="${nodes[0]}:$MASTER_PORT" \
        "${payload[@]}" 2>"$errors" & step=$! SECONDS=0
    (trap '' TERM USR1; exec tail --lines=+1 --follow --sleep-interval=0.2 --pid="$step" -- "$errors" >&2) & log=$!
    while interrupted=0; wait "$step" && code=0 || code=$?; [ "$interrupted" = 1 ]; do :; done && wait "$log" || : # a trap ends wait
}
for _ in 1 2 3; do # somebody may hold the port, or take it between the test and the launch
    if "${container[@]}" python -c 'import socket, sys; socket.create_server(("", int(sys.argv[1])))' "$MASTER_PORT" 2>"$errors"; then launch; else cat -- "$errors" >&2; fi
    if [ "$code" = 0 ] || [ -e "$RUN_DIR/status.json" ] || [ "$SECONDS" -gt 120 ] || ! grep --quiet --ignore-case 'address already in use' "$errors"; then break; fi
    MASTER_PORT=$((MASTER_PORT + 1))
done

# The trainer's status decides, for launchers hide exit codes; without one, a script of yours is known by its code.
word() { sed --quiet "/\"attempt\": *${TRAINER_ATTEMPT}[,}]/s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p" "$RUN_DIR/status.json" 2>/dev/null || :; }
state=$(word state) && case ${state:-${TRAIN_SCRIPT:+own}} in done) exit 0 ;; own) exit "$code" ;; esac
[ "$state" != stopped ] || { echo "ddp.sh: stopped ($(word reason)); to continue: ${given}bash $(printf "%q " "$RUN_DIR/job.sh" "$@")" >&2 && exit 75; }
echo "ddp.sh: failed: $(grep '^trainer: ' "$errors" | tail --lines=1 || echo "${state:-crashed}, exit code $code, see above")" >&2
exit $((code > 0 ? code : 1))
