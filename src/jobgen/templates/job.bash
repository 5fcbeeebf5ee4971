#!/usr/bin/env bash
# @{about}
# Use: @{usage}
# Do not edit: it is made from the two files named here, by @{origin}
@{directives}
set -euo pipefail
die() { echo "@{name}: $*" >&2; exit 78; } # 78: trying again unchanged cannot help

# Settings: a variable of the same name in the environment wins.
@{settings}
@{choice}

# Where am I? Paths become absolute, as they are the same inside the container.
@{begin}
@{where}
per_node=(@{per_node})
(umask 077 && mkdir --parents "$RUN_DIR/logs") && [ -w "$RUN_DIR" ] || die "cannot write $RUN_DIR: set OUTPUT to a folder of all nodes"
for name in IMAGE VENV CONFIG TRAIN_SCRIPT DATA RUN_DIR; do
    [[ ${!name} != *$'\n'* ]] || die "$name holds a line break: rename it"
    [ -z "${!name}" ] || printf -v "$name" %s "$(realpath --canonicalize-missing -- "${!name}")"
done
given='' && for name in @{names} RUN_DIR; do given+="$name=$(printf %q "${!name-}") "; done

# What ranks are told: nothing of this shell's Python, and the plan to compare with.
@{modules}
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP && export PYTHONNOUSERSITE=1 # ~/.local was made for another Python
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-@{threads}}" TRITON_CACHE_DIR=$scratch/triton TORCHINDUCTOR_CACHE_DIR=$scratch/inductor CUDA_CACHE_PATH=$scratch/nv
export RUN_DIR DATA TRAINER_JOB_ID=$job_id TRAINER_ATTEMPT=$((restarts + 1)) TRAINER_WORLD_SIZE=$((nnodes * RANKS_PER_NODE)) TRAINER_RANKS_PER_NODE=$RANKS_PER_NODE
@{launcher}
@{env}

# The wrapper: USE_CONTAINER=0 takes away a prefix and changes nothing else.
case $USE_CONTAINER in 1) VENV='' ;; 0) IMAGE='' PATH=$VENV/bin:$PATH ;; *) die "USE_CONTAINER is $USE_CONTAINER: set it to 0 or 1" ;; esac
clean() { timeout --kill-after=5 @{clean_seconds} "${per_node[@]}" rm --recursive --force -- "$scratch" || rm --recursive --force -- "$scratch"; }
trap clean EXIT && trap 'die "the time limit came before training began: give it more time"' USR1
@{venv}
[ -z "$IMAGE" ] || command -v apptainer >/dev/null || die "no apptainer on $HOSTNAME: load its module, or set USE_CONTAINER=0"
options=() needed=("$PWD" "$RUN_DIR" "$LOCAL_DISK" "${TRAIN_SCRIPT:-$CONFIG}" ${TRAIN_SCRIPT:+"${TRAIN_SCRIPT%/*}"} ${DATA:+"$DATA"}@{binds})
for path in "${needed[@]}" "${IMAGE:-$VENV/bin/python}"; do # bound by --mount, for --bind splits at colons and commas
    [ -r "$path" ] || die "$path is missing: see the settings in this script (image_build.job makes IMAGE, venv_build.job VENV)"
    options+=(--mount "type=bind,\"source=${path//\"/\"\"}\",\"destination=${path//\"/\"\"}\"")
done
@{gpus}
@{stage}
container=(${IMAGE:+@{wrapper}})

# What runs; and first, on every node, a short step that finds what would go wrong.
arguments=("$CONFIG" --backend @{backend}@{task} --device "$DEVICE" --output-dir "$RUN_DIR" --resume auto ${DATA:+--data-dir "$DATA"} "$@")
payload=(-m trainer "${arguments[@]}") check=(python -m trainer.preflight "${arguments[@]}")
[ -z "$TRAIN_SCRIPT" ] || payload=("$TRAIN_SCRIPT" "$@") check=(bash -c 'ls --directory -- "$@" >/dev/null' ls "${needed[@]}")
@{meeting}
timeout --kill-after=5 "${PREFLIGHT_SECONDS:=60}" "${per_node[@]}" "${container[@]}" "${check[@]}" || die "not every node was ready within $PREFLIGHT_SECONDS s: see above"

# One launch, in the background, so that traps run while it does.
[ "$0" -ef "$RUN_DIR/job.sh" ] || cp -- "$0" "$RUN_DIR/job.sh"
[ ! -e "$RUN_DIR/status.json" ] || mv --force -- "$RUN_DIR/status.json" "$RUN_DIR/status.previous.json"
errors=$RUN_DIR/logs/stderr.$TRAINER_ATTEMPT.log code=1
@{traps}
@{launch}
@{attempts}

# The trainer's status decides, for launchers hide exit codes; without one, a script of yours is known by its code.
word() { sed --quiet "/\"attempt\": *${TRAINER_ATTEMPT}[,}]/s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/p" "$RUN_DIR/status.json" 2>/dev/null || :; }
state=$(word state) && case ${state:-${TRAIN_SCRIPT:+own}} in done) exit 0 ;; own) exit "$code" ;; esac
@{again}
[ "$state" != stopped ] || { echo "@{name}: stopped ($(word reason)); to continue: @{continued}" >&2 && exit 75; }
echo "@{name}: failed: $(grep '^trainer: ' "$errors" | tail --lines=1 || echo "${state:-crashed}, exit code $code, see above")" >&2
exit $((code > 0 ? code : 1))
