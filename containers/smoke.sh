#!/usr/bin/env bash
# smoke.sh [VARIANT]: test the image; run by `apptainer test`, or with Docker:
# docker run IMAGE /opt/slipway/containers/smoke.sh
# Takes less than 30 s and needs no GPU. It passes if the image is of VARIANT; its packages can be
# imported and have the pinned versions; Horovod was built with the parts and for the GPUs that the
# pins name, and with torch's NCCL; and an all-reduce of two ranks is correct.
set -euo pipefail
# shellcheck source=containers/pins/cpu.env
source /opt/slipway/pins.env
pins=$(readlink /opt/slipway/pins.env)
variant=$(basename "$pins" .env)
die() { echo "smoke: $*" >&2; exit 1; }

[ "${1:-$variant}" = "$variant" ] ||
    die "this is the $variant image and $1 was asked for: build with VARIANT=$1"

pinned=("$PYTHON_VERSION" "$TORCH_VERSION" "$TORCHVISION_VERSION" "$HOROVOD_VERSION")
python - "${pinned[@]}" <<'END' || die "the image differs from its pins"
import sys
from importlib.metadata import version

import horovod.torch, matplotlib, mpi4py.MPI, tensorboard, torch, torchvision

found = ["%d.%d" % sys.version_info[:2], *map(version, ("torch", "torchvision", "horovod"))]
mpi = mpi4py.MPI.Get_library_version().split(",")[0]
nccl = torch.cuda.nccl.version() if torch.version.cuda else None
print("smoke: Python {}, torch {}, torchvision {}, Horovod {}, MPI {}".format(*found, mpi))
print(f"smoke: CUDA {torch.version.cuda}, NCCL {nccl}")
for name, is_, pin in zip(["Python", "torch", "torchvision", "Horovod"], found, sys.argv[1:]):
    if is_ != pin and not is_.startswith(f"{pin}+"):  # the part after "+" names the build
        sys.exit(f"smoke: {name} is {is_}, pinned is {pin}")
END

command -v numactl >/dev/null || die "no numactl, which torchrun --numa-binding runs"
built=$(horovodrun --check-build)
parts=(PyTorch MPI Gloo)
[ -z "${HOROVOD_GPU_OPERATIONS:-}" ] || parts+=("$HOROVOD_GPU_OPERATIONS")
for part in "${parts[@]}"; do
    grep --quiet --fixed-strings "[X] $part" <<<"$built" || die "Horovod was built without $part"
done
echo "smoke: Horovod has ${parts[*]}"

[ -z "${HOROVOD_BUILD_CUDA_CC_LIST:-}" ] ||
    python - "$HOROVOD_BUILD_CUDA_CC_LIST" <<'END' || die "the image's kernels differ from its pins"
import struct
import sys
from pathlib import Path

import horovod.torch.mpi_lib_v2
import torch

# A fat binary is a header of 16 bytes, then images: kind, version, header size, data size; the
# architecture is at offset 28. Kind 1 is PTX, 2 is machine code.
binary = Path(horovod.torch.mpi_lib_v2.__file__).read_bytes()
found, start = {1: set(), 2: set()}, 0
while (start := binary.find(b"\x50\xed\x55\xba\x01\x00\x10\x00", start)) >= 0:
    at, end = start + 16, start + 16 + struct.unpack_from("<Q", binary, start + 8)[0]
    while at < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", binary, at)
        found[kind] |= set(struct.unpack_from("<I", binary, at + 28))
        at += header + size
    start = end
pinned = {int(number) for number in sys.argv[1].split(",")}
print("smoke: kernels of torch:", torch._C._cuda_getArchFlags())
names = [f"sm_{number}" for number in sorted(found[2])]
names += [f"compute_{number}" for number in found[1]]
print("smoke: kernels of Horovod:", *names)
if (found[2], found[1]) != (pinned, {max(pinned)}):
    sys.exit(f"smoke: pinned are kernels for {sorted(pinned)}, and PTX of the last")
built, loaded = horovod.torch.nccl_built(), int("{}{:02}{:02}".format(*torch.cuda.nccl.version()))
if built != loaded:
    sys.exit(f"smoke: Horovod was built with NCCL {built}, torch has {loaded}")
END

# --local-addr: the host name may not resolve inside. One thread per rank: there may be few cores.
OMP_NUM_THREADS=1 torchrun --standalone --local-addr 127.0.0.1 --nproc-per-node 2 \
    /opt/slipway/containers/allreduce.py
