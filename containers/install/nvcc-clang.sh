#!/usr/bin/env bash
# nvcc-clang.sh, as CUDA_HOME/bin/nvcc: Clang ($CUDA_CLANG) in the place of nvcc, for Horovod's
# build where PyPI has none (CUDA 12). CMake takes it for what it is, Clang; the options that
# Horovod writes for nvcc are translated. https://llvm.org/docs/CompileCudaWithLLVM.html
set -euo pipefail
unset CDPATH
home=$(cd "$(dirname "$0")/.." && pwd)
clang=${CUDA_CLANG/clang/clang++} # the package's name, and the program's

# generate VALUE: append Clang's options for the VALUE of a -gencode to `architectures`. For example
# arch=compute_90,code="sm_90,compute_90": machine code for sm_90, and PTX for newer GPUs.
generate() {
    local code
    for code in $(tr -d '"' <<<"${1#*code=}" | tr , ' '); do
        case $code in
            sm_*) architectures+=("--cuda-gpu-arch=$code") ;;
            compute_*) architectures+=("--cuda-include-ptx=${code/compute/sm}") ;;
        esac
    done
}

arguments=()
defaults=()
architectures=()
while [ $# -gt 0 ]; do
    case $1 in
        --version) # CMake looks for the versions of both
            "$clang" --version
            exec "$home/bin/ptxas" --version
            ;;
        -gencode)
            generate "$2"
            shift
            ;;
        --cuda-gpu-arch=*) defaults+=("$1") ;; # by CMake, for files without -gencode
        -Xcompiler)
            arguments+=("$2")
            shift
            ;;
        *) arguments+=("$1") ;;
    esac
    shift
done
[ ${#architectures[@]} -gt 0 ] || architectures=("${defaults[@]}")
# Clang 19 supports CUDA up to 12.5, treats a newer one as that, and would warn of it each time.
exec "$clang" "--cuda-path=$home" -Wno-unknown-cuda-version --no-cuda-include-ptx=all \
    "${architectures[@]}" "${arguments[@]}"
