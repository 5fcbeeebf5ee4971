#!/bin/sh
# quota_left.sh FOLDER: what quotas leave to this user for files made in FOLDER, one line: KIB WHOSE
# INODES WHOSE, where WHOSE is user, group or project, and `- -` stands where none sets a limit. It
# asks quota(1) and, of Lustre, lfs-quota(1), where they are there, each for at most 4 s.
#
# build/generate copies it from src/slipway/checkpoint to jobscripts/lib, as an image holds neither
# program.
set -u
folder=$1
disk=$(df --output=target -- "$folder" 2>/dev/null | tail -n 1)
user=$(id -u)
group=$(id -g)
[ ! -g "$folder" ] || group=$(stat --format=%g -- "$folder") # files get the folder's own

# ask PROGRAM WHOSE ARGUMENT...: the lines that it prints, behind its name and WHOSE; all at once.
ask() {
    program=$1
    whose=$2
    shift 2
    ! command -v "$program" >/dev/null ||
        LC_ALL=C timeout --kill-after=1 4 "$program" "$@" </dev/null |
        sed "s/^/$program $whose /" &
}

# ask_project: of which new files will be (P), by its number; 0 is none. See lfs-project(1).
ask_project() {
    project=$(LC_ALL=C timeout --kill-after=1 4 lfs project -d "$folder" </dev/null |
        awk '$1 ~ /^[1-9][0-9]*$/ && $2 ~ /P/ {print $1; exit}')
    [ -z "$project" ] || ask lfs project quota -q -p "$project" "$folder"
    wait
}

{
    # --raw-grace: eight numbers, also where no grace period runs; --verbose: also of an empty disk
    ask quota user --user --verbose --no-wrap --raw-grace --filesystem="$disk" "$user"
    ask quota group --group --verbose --no-wrap --raw-grace --filesystem="$disk" "$group"
    ask lfs user quota -q -u "$user" "$folder"
    ask lfs group quota -q -g "$group" "$folder"
    ! command -v lfs >/dev/null || ask_project &
    wait
} 2>/dev/null | awk -v now="$(date +%s)" '
    # Of each line the last eight: used, soft limit, hard limit and grace; of KiB, then of inodes.
    # Lustre breaks a line behind a long name. * is over a limit, [] what it does not know exactly.
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
            # quota prints when the grace period ends, 0 where none runs; lfs that it is over
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
