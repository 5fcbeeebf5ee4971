#!/usr/bin/env bash
# cuda-compiler.sh FOLDER: fetch NVIDIA's compiler, as locked, into FOLDER, put the NCCL of this environment's torch beside it,
# and print where that toolkit is, for CUDA_HOME. Called by horovod-wheel.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1

python -m pip install -qq --no-deps --require-hashes --target "$folder" \
    --requirement "$here/../locks/$VARIANT-build.txt" >&2
if [ -z "${CUDA_CLANG:-}" ]; then
    home=$(echo "$folder"/nvidia/cu*)
else # CUDA 12: a folder for each wheel, and no nvcc among them
    home=$folder/cuda
    mkdir "$home"
    for wheel in cuda_nvcc cuda_runtime cuda_cccl curand; do
        cp -R "$folder/nvidia/$wheel/." "$home"
    done
    cp "$folder/nvidia/cu13/bin/fatbinary" "$home/bin/fatbinary-13"
    for program in nvcc fatbinary; do cp "$here/$program-clang.sh" "$home/bin/$program"; done
    # CMake's names for what these wheels lack: Horovod has no device code to link, and takes the
    # shared runtime.
    ar qc "$home/lib/libcudadevrt.a"
    echo 'INPUT(libcudart.so)' >"$home/lib/libcudart_static.a"
fi
nccl=$(python -c 'import nvidia.nccl; print(*nvidia.nccl.__path__)')
# The wheels hold all that the toolkit does, except the names that CMake and linkers look for.
ln -s lib "$home/lib64"
ln -s "$home"/lib/libcudart.so.* "$home/lib/libcudart.so"
ln -s "$nccl/lib/libnccl.so.2" "$home/lib/libnccl.so"
ln -s "$nccl"/include/* "$home/include/"
echo "$home"
