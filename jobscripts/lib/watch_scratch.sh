#!/bin/sh
# watch_scratch.sh RECORD LAUNCHES FOLDER: remove the scratch folder FOLDER when Slurm ends the job.
# Runs as a separate job step on a node. When Slurm ends a job, it sends SIGTERM to each process of
# it and starts no new job step. After SIGTERM, this script waits until the ranks of LAUNCHES
# (find_ranks.sh) have ended on this node and the job's script has written a second line to the file
# RECORD, as a user may also send SIGTERM to all steps of a job that continues. If RECORD is
# missing, the job's script has removed FOLDER itself, and this script ends. Slurm kills this script
# too when KillWait is over.
set -u
record=$1 launches=$2 folder=$3
unset -v SLIPWAY_LAUNCH

# script_has_ended: return 0 if the job's script has written that line. Opens the file each time, so
# that NFS reads it from the server.
script_has_ended() {
    line=''
    { read -r line && read -r line; } <"$record" 2>/dev/null && [ -n "$line" ]
}

# ranks_live: return 0 if ranks run on this node.
ranks_live() {
    sh "${0%/*}/find_ranks.sh" "$launches" >/dev/null
}

told='' nap='' naps=0
trap 'told=1; kill "$nap" 2>/dev/null' TERM
trap '' USR1 INT HUP
while [ -z "$told" ]; do
    sleep 2 & # a signal directly before `wait` is handled 2 s late at most; KillWait is 30 s
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
    if [ "$looks" -lt 200 ]; then # after that, longer than any KillWait, the job continues
        sleep 0.3
    else
        sleep 10
    fi
done
