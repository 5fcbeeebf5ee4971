#!/bin/sh
# watch_scratch.sh RECORD LAUNCHES FOLDER: in a separate step on a node of a job of Slurm, wait
# until Slurm ends the job, when each of its processes gets SIGTERM, and no new step starts. Then
# remove FOLDER, once the ranks of LAUNCHES (find_ranks.sh) have ended here, and the job's script
# has written a second line into the file RECORD. (A user may send SIGTERM to all steps of a job
# that continues.) If RECORD is gone, the script has removed FOLDER itself, and this ends. When
# KillWait is over, Slurm kills this too.
set -u
record=$1 launches=$2 folder=$3
unset -v SLIPWAY_LAUNCH

# Whether the script has written that line. NFS asks the server where a file is opened.
script_has_ended() {
    line=''
    { read -r line && read -r line; } <"$record" 2>/dev/null && [ -n "$line" ]
}

# Whether ranks live here.
ranks_live() {
    sh "${0%/*}/find_ranks.sh" "$launches" >/dev/null
}

told='' nap='' naps=0
trap 'told=1; kill "$nap" 2>/dev/null' TERM
trap '' USR1 INT HUP
while [ -z "$told" ]; do
    sleep 2 & # a signal right before the wait is seen so late, of KillWait's 30 s
    nap=$!
    wait "$nap"
    naps=$((naps + 1))
    [ $((naps % 30)) != 0 ] || [ -e "$record" ] || exit 0 # once a minute, as it may be on NFS
done
trap '' TERM
looks=0
while [ -e "$record" ]; do
    ! script_has_ended || ranks_live || ! sh "${0%/*}/remove_folders.sh" "$folder" || exit 0
    looks=$((looks + 1))
    if [ "$looks" -lt 200 ]; then # longer than any KillWait: the job goes on
        sleep 0.3
    else
        sleep 10
    fi
done
