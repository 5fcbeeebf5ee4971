#!/usr/bin/env bash
# fatbinary-clang.sh, as CUDA_HOME/bin/fatbinary: CUDA 13's fatbinary for Clang, which writes the
# options of CUDA 12's. It compresses nothing: drivers before 550.54 could not read it.
# https://docs.rapids.ai/api/rapids-cmake/stable/command/rapids_cuda_enable_fatbin_compression
set -euo pipefail
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
