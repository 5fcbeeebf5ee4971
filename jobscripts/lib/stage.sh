#!/bin/sh
# stage.sh SCRATCH SOURCE FOLDER...: on one node, copy each SOURCE, a file or a folder, into the new
# FOLDER below SCRATCH. One copy a node. Fails, before it copies, if the disk is too small. Runs on
# every node, outside the container.
set -eu
scratch=$1
shift
fail() {
    echo "stage: $(uname -n): $*" >&2
    exit 1
}

needed=0
skip=1
for source in "$@"; do
    skip=$((1 - skip))
    [ "$skip" = 0 ] || continue # a target
    # As cp will write it: links as files, each time; nothing compressed; in blocks of 4 KiB.
    size=$(find -L "$source" -printf '%s\n' |
        awk '{blocks += int($1 / 4096) + 1} END {print 4 * blocks}')
    needed=$((needed + size))
done
free=$(df --output=avail --block-size=1K -- "$scratch" | tail --lines=1)
size=$(df --output=size --block-size=1K -- "$scratch" | tail --lines=1)
needed=$((needed + needed / 20 + size / 20)) # the rest is for others on the node
[ "$(stat --file-system --format=%T -- "$scratch")" != tmpfs ] ||
    echo "stage: $(uname -n): $scratch is memory (tmpfs): the copies count as memory of the job" >&2
[ "$free" -gt "$needed" ] ||
    fail "$scratch has $((free / 1024)) MB free and $((needed / 1024)) MB are needed: use" \
        "another SLIPWAY_LOCAL_DISK"

umask 077
while [ $# -gt 0 ]; do
    mkdir -- "$2"
    cp --recursive --dereference --no-preserve=mode -- "$1" "$2" || fail "cannot copy $1 to $2"
    shift 2
done
