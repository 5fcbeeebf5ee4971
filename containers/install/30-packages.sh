#!/usr/bin/env bash
# Install the locked Python packages of the variant into the Python environment that is first on PATH.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# --no-deps: the lock is complete, and nothing may enter beside it.
python -m pip install -qq --no-deps --require-hashes --requirement "$here/../locks/${VARIANT:=cpu}.txt"
