#!/usr/bin/env bash
# @{about}
# Use: @{usage}
# Do not edit: it is made from the two files named here, by @{origin}
@{directives}
set -euo pipefail
die() { echo "@{name}: $*" >&2; exit 78; } # 78: trying again unchanged cannot help

# Settings: a variable of the same name in the environment wins.
@{settings}

# What builds: the modules of the jobs, nothing of this shell's Python, and caches that are not in the home folder.
@{modules}
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP
@{env}
@{begin}
[ -x build/setup ] || die "no build/setup in $PWD: submit it in the project's folder"
[ ! -e "$VENV" ] || [ -L "$VENV" ] || die "$VENV was not made by this script: move it away, or set VENV to another name"
scratch=$(mktemp --directory "$LOCAL_DISK/slipway-venv-XXXXXX") || die "cannot write to $LOCAL_DISK: set LOCAL_DISK to another folder"
built=$VENV.$(date +%Y%m%d-%H%M%S)-$$
trap 'rm -rf -- "$scratch" "$built"' EXIT
export TMPDIR=$scratch XDG_CACHE_HOME=$scratch/cache PIP_CACHE_DIR=$scratch/pip PYTHONNOUSERSITE=1 VARIANT WHEELHOUSE PYTHON
[ -z "$NCCL_PATH" ] || export CUDA_COMPILER='' HOROVOD_NCCL_HOME=$NCCL_PATH HOROVOD_CUDA_HOME="${CUDA_HOME:?load the module of CUDA, or set it}"

# Build it under a name of its own, for an environment cannot be moved; try it; and only then let the link point to it. So
# jobs always find a whole one, and those that run keep theirs.
level=train
[ "$HOROVOD" = 0 ] || level=horovod
VENV=$built build/setup "$level" || die "it could not be built: see above"
"$built/bin/trainer" --dry-run --device cpu --output-dir "$scratch/try" >"$scratch/log" 2>&1 || die "it does not work: $(tail --lines=1 "$scratch/log")"
[ "$HOROVOD" = 0 ] || "$built/bin/python" -c 'import horovod.torch' 2>"$scratch/log" || die "Horovod does not work: $(tail --lines=1 "$scratch/log")"
ln --symbolic -- "${built##*/}" "$scratch/link"
mv --no-target-directory -- "$scratch/link" "$VENV.new" && mv --no-target-directory -- "$VENV.new" "$VENV"
trap 'rm -rf -- "$scratch"' EXIT
echo "@{name}: $VENV is ready, for USE_CONTAINER=0 VENV=$(printf %q "$VENV")"
older=$(find "$(dirname "$VENV")" -maxdepth 1 -name "${VENV##*/}.2*" ! -name "${built##*/}")
[ -z "$older" ] || printf '%s\n' "before it there were, to remove when no job runs in them:" "$older"
