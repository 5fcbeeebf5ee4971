#!/usr/bin/env bash
# nvcc-clang.sh, as CUDA_HOME/bin/nvcc and CUDA_HOME/bin/fatbinary: Clang ($CUDA_CLANG) in the place of nvcc, for Horovod's build
# where PyPI has none (CUDA 12). CMake takes it for what it is; what Horovod writes for nvcc is translated.
# https://llvm.org/docs/CompileCudaWithLLVM.html
set -euo pipefail
home=$(cd "$(dirname "$0")/.." && pwd)

# -gencode arch=compute_90,code="sm_90,compute_90": machine code, and PTX for GPUs that are newer.
generate() {
    local code
    for code in $(tr -d '"' <<<"${1#*code=}" | tr , ' '); do
        case $code in
            sm_*) architectures+=("--cuda-gpu-arch=$code") ;;
            compute_*) architectures+=("--cuda-include-ptx=${code/compute/sm}") ;;
        esac
    done
}

nvcc() {
    local arguments=() defaults=() architectures=()
    while [ $# -gt 0 ]; do
        case $1 in
            --version) "$clang" --version && exec "$home/bin/ptxas" --version ;; # CMake asks for both
            -gencode) generate "$2" && shift ;;
            --cuda-gpu-arch=*) defaults+=("$1") ;; # CMake's, for what names none
            -Xcompiler) arguments+=("$2") && shift ;;
            *) arguments+=("$1") ;;
        esac
        shift
    done
    [ ${#architectures[@]} -gt 0 ] || architectures=("${defaults[@]}")
    # It warns that it does not know this release of CUDA 12, whose headers it takes for the newest that it knows.
    exec "$clang" "--cuda-path=$home" -Wno-unknown-cuda-version --no-cuda-include-ptx=all "${architectures[@]}" \
        "${arguments[@]}"
}

# Clang speaks to CUDA 12's, and the program is CUDA 13's. Drivers before 12.4 cannot read what that compresses.
fatbinary() {
    local argument arguments=(--compress-mode=none)
    local -A kinds=([sm]=elf [compute]=ptx)
    for argument; do
        if [[ $argument =~ image=profile=([a-z]+)_([0-9]+[a-z]?),file=(.*) ]]; then
            argument=--image3=kind=${kinds[${BASH_REMATCH[1]}]},sm=${BASH_REMATCH[2]},file=${BASH_REMATCH[3]}
        fi
        arguments+=("$argument")
    done
    exec "$home/bin/fatbinary-13" "${arguments[@]}"
}
clang=${CUDA_CLANG/clang/clang++} # the package's name, and the program's
"${0##*/}" "$@"
