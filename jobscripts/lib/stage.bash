#!/usr/bin/env bash
# stage.bash SCRATCH [copy|unpack SOURCE FOLDER]...: copy each SOURCE, a file or folder, to a new
# FOLDER in SCRATCH, or unpack SOURCE, a tar, there. Runs once on every node, outside the container.
# Links are replaced by copies of their targets, also outside SOURCE. Fails before it copies if a
# link is broken or circular or if the disk is too small, as far as that can be known, and later
# before the disk is full. SCRATCH/reserved reserves the space that is still to be written, so that
# other jobs see it as used. All of SCRATCH is removed at the end of the job. If the step runs
# again, a node with SCRATCH/staged already has its copies.
set -euo pipefail
here=$(dirname -- "$0")
scratch=$1
shift

# fail MESSAGE: print an error and exit with 1.
fail() {
    echo "stage: $(uname -n): error[staging-failed]: $*" >&2
    exit 1
}

# column NAME: print a column of df(1) for the scratch folder's disk, in KiB.
column() {
    df --output="$1" --block-size=1K -- "$scratch" | tail --lines=1
}

# space_left: print how many KiB can be written to the disk: its free space, or what a quota leaves.
space_left() {
    local free left whose
    free=$(column avail)
    read -r left whose _ < <(sh "$here/quota_left.sh" "$scratch")
    [ "$whose" = - ] || ((left >= free)) || free=$left
    echo "$free"
}

# measure SOURCE: add the size of SOURCE to the arrays kib (KiB as cp will write it) and bytes.
# Links count as files each time, without compression, in blocks of 4 KiB. For a tar the unpacked
# size is unknown, but hardly smaller. Fails at the first broken or circular link or unreadable
# file.
measure() {
    local found
    found=$(LC_ALL=C find -L "$1" \( -type l -printf 'bad %p is a link to %l, which is missing\n' \
        -o ! -readable -printf 'bad %p cannot be read\n' \) -quit -o -printf '%s\n' \
        2>"$scratch/errors" |
        awk '/^bad / {print; bad = 1; exit}
            {bytes += $1; blocks += int($1 / 4096) + 1}
            END {if (!bad) printf "%.0f %.0f\n", 4 * blocks, bytes}') ||
        fail "$1 cannot be copied: $(sed --quiet '1s/^find: //p' "$scratch/errors")"
    [[ $found != bad* ]] || fail "$1 cannot be copied: ${found#bad }"
    rm -- "$scratch/errors"
    kib+=("${found% *}")
    bytes+=("${found#* }")
}

# lock_folder FOLDER: lock FOLDER itself, which needs no lock file and works whoever owns it. Waits
# up to 10 minutes. Returns 1 after that time, and another code if locks are not available: flock(1)
# is missing, or the file system cannot lock folders (NFS). Sets held, the descriptor that holds the
# lock; processes that are started from now on also hold it.
lock_folder() {
    local code=0
    exec {held}<"$1"
    flock --nonblock "$held" 2>/dev/null || code=$?
    [ "$code" = 1 ] || return "$code"
    echo "stage: $(uname -n): waiting for another process that stages in $1" >&2
    flock --timeout 600 "$held"
}

# check_space KIB: fail if the disk has not enough space for KIB. Sets reserve, the KiB that stay
# free for others on the node.
check_space() {
    local free needed
    free=$(space_left)
    reserve=$(($(column size) / 20))
    needed=$(($1 + $1 / 20 + reserve))
    ((free > needed)) ||
        fail "$scratch has $((free / 1024)) MB free and $((needed / 1024)) MB are needed: use" \
            "another SLIPWAY_LOCAL_DISK"
}

# reserve_space KIB: check the space and reserve it at once by a file, while no other job does so on
# this disk. Space in memory (tmpfs) is not reserved, and not every file system can reserve space
# (ZFS reports success, but does not). In that case the lock stays, and no other job stages on this
# disk until this one has ended.
reserve_space() {
    local kind
    kind=$(stat --file-system --format=%T -- "$scratch")
    lock_folder "${scratch%/*}" || :
    check_space "$1"
    if [ "$kind" = tmpfs ]; then
        echo "stage: $(uname -n): warning[staged-in-memory]: $scratch is in memory ($kind): the" \
            "copies count as the job's memory" >&2
    elif fallocate --length="$1KiB" -- "$scratch/reserved" 2>/dev/null &&
        (($(stat --format='%b * %B' -- "$scratch/reserved") >= $1 * 1024)); then
        exec {held}<&-
    else
        rm --force -- "$scratch/reserved"
        check_space "$1" # others may have used the space meanwhile
    fi
}

# release_space PID: release as much of the reserved space as PID has written of the current source.
# The kernel counts bytes, not blocks, so this computes the written share of the source.
release_space() {
    local name value share=0
    while read -r name value; do
        [ "$name" != wchar: ] || share=$((value * 1000 / (bytes[copied] + 1)))
    done 2>/dev/null <"/proc/$1/io" || :
    ((share <= 1000)) || share=1000
    truncate --no-create --size="$((to_come + kib[copied] * (1000 - share) / 1000))K" \
        -- "$scratch/reserved"
}

# fill SOURCE COMMAND...: run COMMAND, which copies SOURCE, and release the reserved space as it
# writes. Stops before the disk is full. Sets copied, the number of the next source.
fill() {
    local source=$1 pid code=0
    shift
    to_come=$((to_come - kib[copied]))
    "$@" 2>"$scratch/errors" &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        [ ! -e "$scratch/reserved" ] || release_space "$pid"
        if (($(column avail) > reserve)); then
            sleep 0.2
        elif [ -e "$scratch/reserved" ]; then
            rm -- "$scratch/reserved"
        else
            kill "$pid" 2>/dev/null || :
            wait "$pid" || :
            fail "$scratch is too small for $source: use another SLIPWAY_LOCAL_DISK"
        fi
    done
    wait "$pid" || code=$?
    [ "$code" = 0 ] ||
        fail "$source cannot be copied: $(grep --max-count=1 . "$scratch/errors" || :)"
    copied=$((copied + 1))
}

# make_folder FOLDER: make a new folder. Fails if it exists.
make_folder() {
    local said
    said=$(mkdir -- "$1" 2>&1) || fail "cannot make $1: ${said##*: }"
}

# copy SOURCE FOLDER: copy SOURCE into the new FOLDER.
copy() {
    make_folder "$2"
    fill "$1" cp --recursive --dereference --no-preserve=mode -- "$1" "$2"
}

# unpack TAR FOLDER: unpack TAR as the new FOLDER. If TAR contains a single folder, FOLDER gets that
# folder's contents. GNU tar writes nowhere else: it strips a leading / from names, refuses .., and
# makes links that could lead elsewhere last (its manual, "Security").
unpack() {
    local first top
    check_tar_end "$1"
    first=$("${tar[@]}" --list --file="$1" 2>/dev/null | head --lines=1 || :)
    make_folder "$2.part"
    fill "$1" "${tar[@]}" --extract --file="$1" --directory="$2.part" --no-same-owner \
        --no-same-permissions --touch --warning=no-unknown-keyword
    top=$(only_subfolder "$2.part")
    if [ -z "$top" ] || [[ $first == . || $first == ./ ]]; then # made by `tar --create .`
        mv --no-target-directory -- "$2.part" "$2"
    else
        chmod u+rwx -- "$top" # without these permissions it cannot be moved or read
        mv --no-target-directory -- "$top" "$2"
        rmdir -- "$2.part"
    fi
}

# check_tar_end TAR: fail if an uncompressed tar does not end with at least 1024 zero bytes, which
# POSIX requires. GNU tar does not detect a tar that was cut off between two files. A compressed tar
# has a checksum.
check_tar_end() {
    local ustar
    ustar=$(od --address-radix=n --format=c --skip-bytes=257 --read-bytes=5 -- "$1" 2>/dev/null |
        tr --delete ' \n') || :
    [ "$ustar" != ustar ] ||
        [ "$(tail --bytes=1024 -- "$1" | tr --delete '\0' | wc --bytes)" = 0 ] ||
        fail "$1 is damaged: its end is missing; copy it again"
}

# only_subfolder FOLDER: print the single folder that FOLDER contains. Prints nothing if FOLDER
# contains anything else.
only_subfolder() {
    local found
    shopt -s dotglob nullglob
    found=("$1"/*)
    if [ ${#found[@]} = 1 ] && [ -d "${found[0]}" ] && [ ! -L "${found[0]}" ]; then
        printf %s "${found[0]}"
    fi
}

tar=(env --unset=TAR_OPTIONS LC_ALL=C tar --force-local)
umask 077
code=0
lock_folder "$scratch" || code=$?
[ ! -e "$scratch/staged" ] || exit 0
if [ "$code" = 0 ]; then # remove what a killed step has left
    for ((number = 3; number <= $#; number += 3)); do
        sh "$here/remove_folders.sh" "${!number}" "${!number}.part"
    done
    rm --force -- "$scratch/reserved"
elif [ "$code" = 1 ]; then
    fail "another process has been staging in $scratch for 10 minutes: is the disk of image and" \
        "data slow, or $scratch?"
fi
kib=() bytes=() copied=0 to_come=0
for ((number = 2; number <= $#; number += 3)); do
    measure "${!number}"
    to_come=$((to_come + kib[-1]))
done
reserve_space "$to_come"
while [ $# -gt 0 ]; do
    "$1" "$2" "$3"
    shift 3
done
rm --force -- "$scratch/reserved" "$scratch/errors"
: >"$scratch/staged"
