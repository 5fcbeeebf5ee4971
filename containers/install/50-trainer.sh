#!/usr/bin/env bash
# Install the trainer as /opt/slipway/src, which the environment points to: binding other sources over that folder is all it
# takes to run them in this image.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=${here%/containers/install}

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python -m pip install -qq --no-deps --require-hashes --target "$tools" --requirement "$here/../locks/build.txt"
PYTHONPATH=$tools python -m pip install -qq --no-deps --no-build-isolation --no-index --editable "$root"
# An image is read-only: what is not compiled now is compiled at every start.
python -m compileall -q "$root/src"
