#!/bin/sh
# quota_left.sh FOLDER: print this user's remaining quota for new files in FOLDER, as one line:
# KIB WHOSE INODES WHOSE. WHOSE is user, group or project; `- -` means that no quota sets a limit.
# The script runs quota(1) and, for Lustre, lfs-quota(1), if installed, each for at most 4 s.
#
# build/generate copies this file from src/slipway/checkpoint to jobscripts/lib, because an image
# contains neither program.
set -u
folder=$1
disk=$(df --output=target -- "$folder" 2>/dev/null | tail -n 1)
user=$(id -u)
group=$(id -g)
[ ! -g "$folder" ] || group=$(stat --format=%g -- "$folder") # new files get the folder's group

# ask PROGRAM WHOSE ARGUMENT...: run PROGRAM in the background, if it is installed, and print each
# line of its output after its name and WHOSE.
ask() {
    program=$1
    whose=$2
    shift 2
    ! command -v "$program" >/dev/null ||
        LC_ALL=C timeout --kill-after=1 4 "$program" "$@" </dev/null |
        sed "s/^/$program $whose /" &
}

# ask_project: query the quota of the project that new files inherit (flag P), by its number; 0
# means no project. See lfs-project(1).
ask_project() {
    project=$(LC_ALL=C timeout --kill-after=1 4 lfs project -d "$folder" </dev/null |
        awk '$1 ~ /^[1-9][0-9]*$/ && $2 ~ /P/ {print $1; exit}')
    [ -z "$project" ] || ask lfs project quota -q -p "$project" "$folder"
    wait
}

{
    # --raw-grace: print eight numbers even without a running grace period; --verbose: print unused
    # disks too
    ask quota user --user --verbose --no-wrap --raw-grace --filesystem="$disk" "$user"
    ask quota group --group --verbose --no-wrap --raw-grace --filesystem="$disk" "$group"
    ask lfs user quota -q -u "$user" "$folder"
    ask lfs group quota -q -g "$group" "$folder"
    ! command -v lfs >/dev/null || ask_project &
    wait
} 2>/dev/null | awk -v now="$(date +%s)" '
    # The last eight fields of each line: used, soft limit, hard limit and grace; for KiB, then for
    # inodes. Lustre breaks a line after a long name. * marks a value over a limit, [] an inexact
    # value.
    NF >= 10 {
        gsub(/[][*]/, "")
        for (i = 0; i < 8; i++) {
            value[i] = $(NF - 7 + i)
            if (i != 3 && i != 7 && value[i] !~ /^[0-9]+$/)
                next
        }
        for (i = 0; i < 8; i += 4) {
            limit = value[i + 2] > 0 ? value[i + 2] : value[i + 1]
            if (limit == 0)
                continue
            left = limit - value[i]
            over = value[i + 1] > 0 && value[i] > value[i + 1]
            grace = value[i + 3]
            # quota prints the time at which the grace period ends, or 0 if none runs; lfs prints
            # none or expired after it has ended
            ended = $1 == "lfs" ? grace ~ /^(none|expired)$/ : grace > 0 && grace <= now
            if (left < 0 || over && ended)
                left = 0
            if (!(i in least) || left < least[i]) {
                least[i] = left
                whose[i] = $2
            }
        }
    }
    function pair(i) { return i in least ? sprintf("%.0f %s", least[i], whose[i]) : "- -" }
    END { print pair(0), pair(4) }'
