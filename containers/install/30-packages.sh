#!/usr/bin/env bash
# Install the locked Python packages of the variant into the Python environment that is first on PATH.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lock=$here/../locks/${VARIANT:=cpu}.txt

# --no-deps: the lock is complete, and nothing may enter beside it.
python -m pip install -qq --no-deps --require-hashes --requirement "$lock" || {
    echo "30-packages: pip could not install ${lock##*/}: no network, or a mirror without it (see: pip config list, PIP_INDEX_URL)" >&2
    exit 1
}
# 230 MB of the CUDA wheels that torch neither links nor loads: static libraries, cuSOLVER's Mg interface, NVRTC's second build.
site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for package in "$site"/{nvidia,triton}; do
    [ ! -d "$package" ] || find "$package" \( -name '*.a' -o -name 'libcusolverMg.so*' -o -name 'libnvrtc*.alt.so*' \) -delete
done
