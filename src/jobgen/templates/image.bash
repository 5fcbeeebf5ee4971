#!/usr/bin/env bash
# @{about}
# Use: @{usage}
# Do not edit: it is made from the two files named here, by @{origin}
@{directives}
set -euo pipefail
die() { echo "@{name}: $*" >&2; exit 78; } # 78: trying again unchanged cannot help

# Settings: a variable of the same name in the environment wins.
@{settings}

# What builds: the modules of the jobs, and caches that are not in the home folder.
@{modules}
@{env}
@{begin}
[ -x build/image ] || die "no build/image in $PWD: submit it in the project's folder"
command -v apptainer >/dev/null || die "no apptainer on $HOSTNAME: load its module"
scratch=$(mktemp --directory "$LOCAL_DISK/slipway-image-XXXXXX") || die "cannot write to $LOCAL_DISK: set LOCAL_DISK to another folder"
trap 'chmod --recursive u+rwX -- "$scratch" 2>/dev/null; rm -rf -- "$scratch"' EXIT # what an unprivileged build leaves may be locked
export SCRATCH=$scratch TMPDIR=$scratch XDG_CACHE_HOME=$scratch/cache PIP_CACHE_DIR=$scratch/pip VARIANT BASE_IMAGE BUILD_ARGS

# Apptainer alone, without root: it gets the base itself, runs the recipe, and tests the image before it gets its name.
ROUTES=registry build/image || die "it could not be built: see above"
mv --force -- "dist/slipway-$VARIANT.sif" "$IMAGE"
echo "@{name}: $IMAGE is ready: IMAGE=$(printf %q "$IMAGE") sbatch jobscripts/ddp.job"
