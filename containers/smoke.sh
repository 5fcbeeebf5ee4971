#!/usr/bin/env bash
# smoke.sh [VARIANT]: the image's own test, by `apptainer test` or `docker run IMAGE /opt/slipway/containers/smoke.sh`. Under 30 s,
# and without a GPU: versions are the pins', Horovod has what it was built with, imports, an all-reduce of two ranks.
set -euo pipefail
# shellcheck source=containers/pins/cpu.env
source /opt/slipway/pins.env
pins=$(readlink /opt/slipway/pins.env)
variant=$(basename "$pins" .env)
die() { echo "smoke: $*" >&2; exit 1; }

[ "${1:-$variant}" = "$variant" ] || die "this is the $variant image and $1 was asked for: build with VARIANT=$1"

python - "$PYTHON_VERSION" "$TORCH_VERSION" "$TORCHVISION_VERSION" "$HOROVOD_VERSION" <<'END' || die "the image differs from its pins"
import sys
from importlib.metadata import version

import horovod.torch, matplotlib, mpi4py.MPI, tensorboard, torch
from trainer.torchvision_on_cpu import import_torchvision

torchvision = import_torchvision()
found = ["%d.%d" % sys.version_info[:2], *map(version, ("torch", "torchvision", "horovod"))]
print("smoke: Python {}, torch {}, torchvision {}, Horovod {}, MPI".format(*found), mpi4py.MPI.Get_library_version().split(",")[0])
print(f"smoke: CUDA {torch.version.cuda}, NCCL {torch.cuda.nccl.version() if torch.version.cuda else None}")
for name, is_, pin in zip(["Python", "torch", "torchvision", "Horovod"], found, sys.argv[1:]):
    if is_ != pin and not is_.startswith(f"{pin}+"):  # what comes behind "+" says how it was built
        sys.exit(f"smoke: {name} is {is_}, pinned is {pin}")
END

built=$(horovodrun --check-build)
parts=(PyTorch MPI Gloo)
[ "$variant" != cuda ] || parts+=(NCCL)
for part in "${parts[@]}"; do
    grep --quiet --fixed-strings "[X] $part" <<<"$built" || die "Horovod was built without $part"
done
echo "smoke: Horovod has ${parts[*]}"

# Addresses, as the host name need not resolve inside; one thread a rank, as the cores may be few.
OMP_NUM_THREADS=1 torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node 2 /opt/slipway/containers/allreduce.py
