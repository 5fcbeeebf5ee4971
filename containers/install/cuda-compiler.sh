#!/usr/bin/env bash
# cuda-compiler.sh FOLDER: install the locked wheels of NVIDIA's compiler into FOLDER, link the NCCL
# of this environment's torch there, and print the folder of that toolkit, for CUDA_HOME. Called by
# horovod-wheel.sh. Reads VARIANT and CUDA_CLANG.
set -euo pipefail
unset CDPATH
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1

python -m pip install -qq --no-deps --require-hashes --target "$folder" \
    --requirement "$here/../locks/$VARIANT-build.txt" >&2
if [ -z "${CUDA_CLANG:-}" ]; then
    home=$(echo "$folder"/nvidia/cu*)
else # CUDA 12: each wheel has a folder of its own, and none has nvcc
    home=$folder/cuda
    mkdir "$home"
    for wheel in cuda_nvcc cuda_runtime cuda_cccl curand; do
        cp -R "$folder/nvidia/$wheel/." "$home"
    done
    cp "$folder/nvidia/cu13/bin/fatbinary" "$home/bin/fatbinary-13"
    for program in nvcc fatbinary; do
        cp "$here/$program-clang.sh" "$home/bin/$program"
    done
    # CMake requires two libraries that these wheels lack. An empty one will do for device code, of
    # which Horovod links none; the shared runtime replaces the static one.
    ar qc "$home/lib/libcudadevrt.a"
    echo 'INPUT(libcudart.so)' >"$home/lib/libcudart_static.a"
fi
nccl=$(python -c 'import nvidia.nccl; print(*nvidia.nccl.__path__)')
# The wheels hold the toolkit's files, except the names that CMake and linkers look for.
ln -s lib "$home/lib64"
ln -s "$home"/lib/libcudart.so.* "$home/lib/libcudart.so"
ln -s "$nccl/lib/libnccl.so.2" "$home/lib/libnccl.so"
ln -s "$nccl"/include/* "$home/include/"
echo "$home"
