#!/usr/bin/env bash
# Install the pinned torch and torchvision into the Python environment that is first on PATH. Reads
# VARIANT, a name in containers/pins (cpu).
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=containers/pins/cpu.env
source "$here/../pins/${VARIANT:=cpu}.env"

die() { echo "20-torch: $*" >&2; exit 1; }

# install PIP-ARGUMENT...: --no-deps, as the dependencies come from the lock, with hashes, and
# torchvision's would replace torch by another build.
install() { python -m pip install -qq --no-deps "$@"; }

# First with pip's own configuration: a site's mirror or folder of wheels answers at once, and where
# it lacks this build, pip says so within a second. An index that cannot be reached costs a minute
# of retries.
# Three "=": for two, 2.13.0+cpu is also a 2.13.0, and preferred to it.
index=()
if ! install "torch===$TORCH_VERSION" 2>/dev/null; then
    index=(--index-url "$TORCH_INDEX")
    install "${index[@]}" "torch===$TORCH_VERSION" ||
        die "no torch $TORCH_VERSION in pip's own indexes nor at $TORCH_INDEX: set TORCH_INDEX," \
            "or PIP_FIND_LINKS to a folder that holds the wheel"
fi
# From the index of torch, so that it is the same build (CPU or CUDA) if there is one.
install "${index[@]}" "torchvision==$TORCHVISION_VERSION" ||
    install "torchvision==$TORCHVISION_VERSION"
# Remove the tests of torch itself, 120 MB of programs. Of bin, it starts torch_shm_manager alone.
torch=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch
rm -rf "$torch/test"
for program in "$torch"/bin/*; do
    [ "${program##*/}" = torch_shm_manager ] || rm -rf "$program"
done
python "$here/torchvision_on_cpu.py"
