#!/usr/bin/env bash
# stage.bash SCRATCH [copy|unpack SOURCE FOLDER]...: on one node, copy each SOURCE, a file or a
# folder, into the new FOLDER below SCRATCH, or unpack it there, a tar. One copy a node. Fails if
# the disk is too small, before it copies where that can be known. Runs on every node, outside the
# container.
set -euo pipefail
here=$(dirname -- "$0")
scratch=$1
shift

# fail MESSAGE
fail() {
    echo "stage: $(uname -n): error[staging-failed]: $*" >&2
    exit 1
}

# column NAME: of df(1), in KiB.
column() {
    df --output="$1" --block-size=1K -- "$scratch" | tail --lines=1
}

# space_left: KiB that can be written to the disk: what is free there, or what a quota leaves.
space_left() {
    local free left whose
    free=$(column avail)
    read -r left whose _ < <(sh "$here/quota_left.sh" "$scratch")
    [ "$whose" = - ] || ((left >= free)) || free=$left
    echo "$free"
}

# size_of SOURCE: KiB of it, as cp will write it: links as files, each time; nothing compressed; in
# blocks of 4 KiB. What a tar unpacks to is not known, but hardly less.
size_of() {
    find -L "$1" -printf '%s\n' | awk '{blocks += int($1 / 4096) + 1} END {print 4 * blocks}'
}

# check_space SOURCE...: fails if the disk is too small for them all. Sets reserve, the KiB that are
# for others on the node.
check_space() {
    local source free needed=0 size kind
    for source in "$@"; do
        size=$(size_of "$source")
        needed=$((needed + size))
    done
    free=$(space_left)
    reserve=$(($(column size) / 20))
    needed=$((needed + needed / 20 + reserve))
    kind=$(stat --file-system --format=%T -- "$scratch")
    [ "$kind" != tmpfs ] ||
        echo "stage: $(uname -n): warning[staged-in-memory]: $scratch is memory ($kind): copies" \
            "count as memory of the job" >&2
    ((free > needed)) ||
        fail "$scratch has $((free / 1024)) MB free and $((needed / 1024)) MB are needed: use" \
            "another SLIPWAY_LOCAL_DISK"
}

# copy SOURCE FOLDER
copy() {
    mkdir -- "$2"
    cp --recursive --dereference --no-preserve=mode -- "$1" "$2" || fail "cannot copy $1 to $2"
}

# unpack TAR FOLDER: what the tar holds; where that is one folder, what is in it. GNU tar writes
# nowhere else: it takes away the / that a name begins with, refuses .., and makes links last that
# could lead elsewhere (its manual, "Security").
unpack() {
    local first top
    check_end "$1"
    first=$("${tar[@]}" --list --file="$1" 2>/dev/null | head --lines=1 || :)
    mkdir -- "$2.part"
    extract "$1" "$2.part"
    top=$(sole_folder "$2.part")
    if [ -z "$top" ] || [[ $first == . || $first == ./ ]]; then # as of `tar --create .`
        mv --no-target-directory -- "$2.part" "$2"
    else
        chmod u+rwx -- "$top" # else it cannot be moved, or read
        mv --no-target-directory -- "$top" "$2"
        rmdir -- "$2.part"
    fi
}

# check_end TAR: a tar ends with at least 1024 bytes of zero, POSIX says. Where it was cut off
# between two files, GNU tar finds nothing wrong. One that is compressed has a checksum.
check_end() {
    local ustar
    ustar=$(od --address-radix=n --format=c --skip-bytes=257 --read-bytes=5 -- "$1" 2>/dev/null |
        tr --delete ' \n') || :
    [ "$ustar" != ustar ] ||
        [ "$(tail --bytes=1024 -- "$1" | tr --delete '\0' | wc --bytes)" = 0 ] ||
        fail "$1 is damaged: its end is missing; copy it again"
}

# extract TAR FOLDER: stops before the disk is full.
extract() {
    local pid code=0
    "${tar[@]}" --extract --file="$1" --directory="$2" --no-same-owner --no-same-permissions \
        --touch --warning=no-unknown-keyword 2>"$2.errors" &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        if (($(column avail) <= reserve)); then
            kill "$pid" 2>/dev/null || :
            wait "$pid" || :
            fail "$scratch is too small for what $1 holds: use another SLIPWAY_LOCAL_DISK"
        fi
        sleep 0.2
    done
    wait "$pid" || code=$?
    [ "$code" = 0 ] || fail "cannot unpack $1: $(grep --max-count=1 . "$2.errors")"
    rm -- "$2.errors"
}

# sole_folder FOLDER: the one that is all it holds; nothing if it holds something else.
sole_folder() {
    local found
    shopt -s dotglob nullglob
    found=("$1"/*)
    if [ ${#found[@]} = 1 ] && [ -d "${found[0]}" ] && [ ! -L "${found[0]}" ]; then
        printf %s "${found[0]}"
    fi
}

tar=(env --unset=TAR_OPTIONS LC_ALL=C tar --force-local)
umask 077
sources=()
for ((number = 2; number <= $#; number += 3)); do
    sources+=("${!number}")
done
check_space "${sources[@]}"
while [ $# -gt 0 ]; do
    "$1" "$2" "$3"
    shift 3
done
