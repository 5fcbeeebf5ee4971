#!/usr/bin/env bash
# Install the trainer from /opt/slipway/src as an editable package: the environment only points to
# that folder, so sources that are bound over it replace the image's.
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${here%/containers/install}
pip_install() { python -m pip install -qq --no-deps "$@"; }

# The build tools are installed outside the environment and removed afterwards.
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
pip_install --require-hashes --target "$tools" --requirement "$here/../locks/build.txt"
PYTHONPATH=$tools \
    pip_install --no-build-isolation --no-index --editable "$root"
# An image is read-only: Python could not save compiled modules, and would compile at every start.
python -m compileall -q "$root/src"
