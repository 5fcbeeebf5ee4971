#!/usr/bin/env bash
# fatbinary-clang.sh, as CUDA_HOME/bin/fatbinary: run the fatbinary of CUDA 13 for Clang, which
# passes the options of CUDA 12's. Compression is off: drivers before 550.54 cannot read what CUDA
# 13's compresses.
# https://docs.rapids.ai/api/rapids-cmake/stable/command/rapids_cuda_enable_fatbin_compression
set -euo pipefail
unset CDPATH
home=$(cd "$(dirname "$0")/.." && pwd)

declare -A kinds=([sm]=elf [compute]=ptx)
arguments=(--compress-mode=none)
for argument; do
    if [[ $argument =~ image=profile=([a-z]+)_([0-9]+[a-z]?),file=(.*) ]]; then
        argument=--image3=kind=${kinds[${BASH_REMATCH[1]}]},sm=${BASH_REMATCH[2]}
        argument+=,file=${BASH_REMATCH[3]}
    fi
    arguments+=("$argument")
done
exec "$home/bin/fatbinary-13" "${arguments[@]}"
