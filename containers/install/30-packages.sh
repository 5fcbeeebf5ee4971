#!/usr/bin/env bash
# Install the locked Python packages of the variant into the Python environment that is first on
# PATH. Reads VARIANT, a name in containers/pins (cpu).
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
lock=$here/../locks/${VARIANT:=cpu}.txt

die() { echo "30-packages: $*" >&2; exit 1; }

# --no-deps: the lock is complete, and nothing else may be installed.
python -m pip install -qq --no-deps --require-hashes --requirement "$lock" ||
    die "pip could not install ${lock##*/}: no network, or a mirror without it" \
        "(see: pip config list, PIP_INDEX_URL)"

# Remove 230 MB of the CUDA wheels that torch neither links nor loads: static libraries, cuSOLVER's
# multi-GPU interface (Mg), and the alternative build of NVRTC.
site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for package in "$site"/{nvidia,triton}; do
    [ -d "$package" ] || continue
    find "$package" \( -name '*.a' -o -name 'libcusolverMg.so*' -o -name 'libnvrtc*.alt.so*' \) \
        -delete
done
# And 65 MB of packages' own tests.
for package in "$site"/{matplotlib,networkx,numpy,sympy}; do
    [ -d "$package" ] || continue
    find "$package" -type d -name tests -prune -exec rm -rf {} +
done
