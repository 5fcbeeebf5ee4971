#!/usr/bin/env bash
# nvcc-clang.sh, as CUDA_HOME/bin/nvcc: Clang ($CUDA_CLANG) in the place of nvcc, for Horovod's
# build where PyPI has none (CUDA 12). CMake takes it for what it is, Clang; the options that
# Horovod writes for nvcc are translated. https://llvm.org/docs/CompileCudaWithLLVM.html
set -euo pipefail
home=$(cd "$(dirname "$0")/.." && pwd)
clang=${CUDA_CLANG/clang/clang++} # the package's name, and the program's

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

arguments=() defaults=() architectures=()
while [ $# -gt 0 ]; do
    case $1 in
        --version) # CMake looks for both in it
            "$clang" --version
            exec "$home/bin/ptxas" --version
            ;;
        -gencode) generate "$2" && shift ;;
        --cuda-gpu-arch=*) defaults+=("$1") ;; # CMake's, for what names none
        -Xcompiler) arguments+=("$2") && shift ;;
        *) arguments+=("$1") ;;
    esac
    shift
done
[ ${#architectures[@]} -gt 0 ] || architectures=("${defaults[@]}")
# Clang 19 knows CUDA up to 12.5, and would warn of each newer one that it takes it for that.
exec "$clang" "--cuda-path=$home" -Wno-unknown-cuda-version --no-cuda-include-ptx=all \
    "${architectures[@]}" "${arguments[@]}"
