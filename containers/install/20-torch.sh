#!/usr/bin/env bash
# Install the pinned torch and torchvision into the Python environment that is first on PATH.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=containers/pins/cpu.env
source "$here/../pins/${VARIANT:=cpu}.env"

# --no-deps: their own dependencies come from the lock, with hashes, and torchvision would ask for another build of torch.
install() { python -m pip install -qq --no-deps "$@"; }

# The machine's own pip configuration first: a site's mirror or wheel folder answers at once, and where it has no such build
# pip says so in a second; an index that cannot be reached would cost a minute of retries before pip looks elsewhere.
# Three "=": to two, 2.13.0+cpu would be the better 2.13.0.
index=()
install "torch===$TORCH_VERSION" 2>/dev/null || { index=(--index-url "$TORCH_INDEX") && install "${index[@]}" "torch===$TORCH_VERSION"; } || {
    echo "20-torch: no torch $TORCH_VERSION in pip's own indexes nor at $TORCH_INDEX: set TORCH_INDEX, or PIP_FIND_LINKS to a folder that holds the wheel" >&2
    exit 1
}
# From where torch was, so that its build is torch's too if there is one.
install "${index[@]}" "torchvision==$TORCHVISION_VERSION" || install "torchvision==$TORCHVISION_VERSION"
