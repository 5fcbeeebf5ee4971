#!/bin/sh
# make_folder.sh TRUSTED FOLDER [BELOW]: make FOLDER on this node, which only the user may enter,
# and BELOW in it. An existing FOLDER of the user is used. Unless TRUSTED is 1, exits with 78 and a
# one-line error if others can replace FOLDER, because everybody can write a folder above it that
# has no sticky bit and that others can enter (like refuse_shared_above).
# shellcheck disable=SC3067 # -O: dash and busybox support it
set -eu
trusted=$1 folder=$2
shift 2
if [ "$trusted" != 1 ]; then
    above=$(cd -P -- "$(dirname -- "$folder")" && pwd -P)/ open=''
    while [ -n "$above" ]; do
        above=${above%/*}
        mode=$(ls -ldn -- "${above:-/}")
        case $mode in
            # Others cannot enter this folder.
            ??????[-S]??[-T]*) [ ! -O "${above:-/}" ] || { open='' && continue; } ;;
        esac
        case $mode in
            ?????????[tT]*) ;;
            ????????w*) open=${above:-/} ;;
        esac
    done
    if [ -n "$open" ]; then
        echo "make_folder: $(uname -n): error[writable-by-others]: others can write $open and so" \
            "replace $folder, from which code is run: chmod o-w, or +t; or set" \
            "SLIPWAY_LOCAL_DISK to another folder, or SLIPWAY_TRUSTED_FOLDER to this one" >&2
        exit 78
    fi
fi
mkdir -m 700 -- "$folder" 2>/dev/null ||
    { [ -d "$folder" ] && [ -O "$folder" ] && [ ! -L "$folder" ]; } ||
    mkdir -m 700 -- "$folder"
[ $# = 0 ] || mkdir -p -- "$1"
