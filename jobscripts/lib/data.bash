# shellcheck shell=bash
# The kind of SLIPWAY_DATA: a folder, or one file instead of many small ones, because a shared disk
# handles that better. The file is a ZIP archive, which the trainer reads; a squashfs image, which
# the container mounts; or a tar, which each node unpacks on its local disk. `jobgen submit` sources
# this file alone, to report errors before the job waits in the queue.

# kind_of_data PATH: print the kind of the data: folder, zip, squashfs, tar, damaged or file
# (anything else). After damaged and file the reason can follow. The content decides, not the name.
# A tar must be readable by this machine's `tar`: some machines lack zstd.
kind_of_data() {
    local magic ustar why
    local list=(timeout 20 env --unset=TAR_OPTIONS tar --list --force-local --file="$1")
    if [ -d "$1" ]; then
        echo folder
        return 0
    elif [ ! -f "$1" ]; then # reading a FIFO would block
        echo file
        return 0
    fi
    magic=$(od --address-radix=n --format=x1 --read-bytes=6 -- "$1" | tr --delete ' \n')
    ustar=$(od --address-radix=n --format=c --skip-bytes=257 --read-bytes=5 -- "$1" 2>/dev/null |
        tr --delete ' \n') || :
    case $magic.$ustar in
        68737173*) # hsqs: squashfs 4, which is always little-endian
            kind_of_squashfs "$1"
            return 0
            ;;
        504b0304* | 504b0506*)
            kind_of_zip "$1"
            return 0
            ;;
        *.ustar) ;;
        # gzip, compress, bzip2, xz, zstd, lzip, lzop, lzma: tar detects these compressions.
        1f8b* | 1f9d* | 425a68* | fd377a585a00* | 28b52ffd* | 4c5a4950* | 894c5a4f* | 5d0000*) ;;
        *) echo file && return 0 ;;
    esac
    if [ -n "$("${list[@]}" 2>/dev/null | head --lines=1 || :)" ]; then # reads only the beginning
        echo tar
    else
        why=$("${list[@]}" 2>&1 >/dev/null | grep --max-count=1 . || :)
        echo "file ${why:-tar: the archive is empty}"
    fi
}

# kind_of_squashfs PATH: print squashfs, or damaged if the file is shorter than its superblock says
# (bytes_used, at byte 40), as after an interrupted copy. The container runtime's error would not
# mention that.
kind_of_squashfs() {
    local whole there number=(--address-radix=n --format=u8 --endian=little)
    whole=$(od "${number[@]}" --skip-bytes=40 --read-bytes=8 -- "$1" 2>/dev/null) ||
        whole=96 # size of the superblock
    there=$(stat --dereference --format=%s -- "$1")
    if ((there < whole)); then
        echo "damaged the file has only $there of ${whole// /} bytes of a squashfs image"
    else
        echo squashfs
    fi
}

# kind_of_zip PATH: print zip, or damaged if the central directory's end record is missing. That
# record is within the last 65557 bytes: its own 22 and the longest comment after it.
kind_of_zip() {
    local ends
    ends=$(tail --bytes=65557 -- "$1" | LC_ALL=C grep --count --text --fixed-strings $'PK\5\6') || :
    if ((ends)); then
        echo zip
    else
        echo "damaged the end of a ZIP archive is missing"
    fi
}

# inspect_data: find out whether SLIPWAY_DATA can be used with the values of USE_CONTAINER,
# SLIPWAY_STAGE and SLIPWAY_SCRIPT. Reads mounts_squashfs, which is 1 if the container runtime
# mounts images. Sets data_kind, and data_refusal, the reason why the data cannot be used, or empty.
# A user script may read any file itself, and so may `jobgen shell`, which has no SLIPWAY_CONFIG.
inspect_data() {
    local why='' reader=script
    [ -n "$SLIPWAY_SCRIPT" ] || [ -z "${SLIPWAY_CONFIG:-}" ] || reader=trainer
    data_kind=''
    data_refusal=''
    [ -n "$SLIPWAY_DATA" ] || return 0
    read -r data_kind why < <(kind_of_data "$SLIPWAY_DATA") || :
    case $data_kind.$mounts_squashfs$USE_CONTAINER.$SLIPWAY_STAGE.$reader in
        squashfs.0*)
            why="is a squashfs image, which the container runtime of this site does not mount:"
            why+=" unpack it with unsquashfs and use the folder, or use a tar"
            ;;
        squashfs.?0.*)
            why="is a squashfs image, which only a container mounts: set USE_CONTAINER=1, or unpack"
            why+=" it with unsquashfs and use the folder"
            ;;
        tar.*.0.*) why="is a tar, which each node must unpack: set SLIPWAY_STAGE=1" ;;
        damaged.*) why="is damaged: $why; copy it again" ;;
        file.*.trainer)
            why="is neither a folder, a ZIP archive, a squashfs image nor a tar${why:+ ($why)}"
            ;;
        *) return 0 ;;
    esac
    data_refusal="$SLIPWAY_DATA $why"
}

# check_data: fail if SLIPWAY_DATA is missing or cannot be used. Sets data_kind: folder, zip,
# squashfs, tar, file, or empty.
check_data() {
    local mounts_squashfs=0
    [ -z "$SLIPWAY_DATA" ] || require no-data 'file or folder' SLIPWAY_DATA
    ! declare -F image_mount >/dev/null || mounts_squashfs=1
    inspect_data
    [ -z "$data_refusal" ] || die bad-data-file "SLIPWAY_DATA: $data_refusal"
}
