#!/usr/bin/env bash
# cuda-compiler.sh FOLDER: fetch NVIDIA's compiler, as locked, into FOLDER, put the NCCL of this environment's torch beside it,
# and print where that toolkit is, for CUDA_HOME. Called by horovod-wheel.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1

python -m pip install -qq --no-deps --require-hashes --target "$folder" --requirement "$here/../locks/cuda-build.txt" >&2
home=$(echo "$folder"/nvidia/cu*)
nccl=$(python -c 'import nvidia.nccl; print(*nvidia.nccl.__path__)')
# The wheels hold all that the toolkit does, except the names that CMake and linkers look for.
ln -s lib "$home/lib64"
ln -s "$home"/lib/libcudart.so.* "$home/lib/libcudart.so"
ln -s "$nccl/lib/libnccl.so.2" "$home/lib/libnccl.so"
ln -s "$nccl"/include/* "$home/include/"
echo "$home"
