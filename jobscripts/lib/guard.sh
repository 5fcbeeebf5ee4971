#!/bin/sh
# guard.sh SECONDS LONGER HEART LOG NODE JOB REQUEUES COUNT COMMAND...: on another node than NODE,
# which runs the script of JOB, look whether that touches the file HEART, as it does every 10 s.
# Once it has not done so for a minute, and NODE starts no process (see node_answers), add "COUNT
# JOB" to REQUEUES, the job's count of them, and run COMMAND, which requeues the job; where that is
# refused it is cancelled. Else a job that Slurm lets live without its first node (--no-kill) would
# hold the others until its time limit. It ends with the job, also where no slurmd lives here that
# would end it.
set -u
limit=$1 retry_limit=$2 heartbeat=$3 log=$4 node=$5 job=$6 requeues=$7 count=$8
shift 8

# Opened first: so NFS asks the server for the time, too.
last_heartbeat() {
    stat --format=%Y - <"$heartbeat" 2>/dev/null
}

# A job that has ended would be run once more by `scontrol requeue`.
job_state() {
    timeout --kill-after=5 20 scontrol --oneliner show job "$job" 2>/dev/null |
        sed --quiet 's/.* JobState=\([^ ]*\).*/\1/p'
}

# node_starts_process SECONDS: whether NODE does so within that time.
node_starts_process() {
    # Not as this step is bound, on another node.
    timeout --kill-after=5 "$1" srun --overlap --nodes=1 --ntasks=1 --cpu-bind=none --gres=none \
        --mem=0 --nodelist="$node" true 2>/dev/null
}

# node_answers: whether it does within SECONDS; or, if Slurm does not say that it is out of service,
# at the second time, within LONGER, as a busy controller is slow, too.
node_answers() {
    node_starts_process "$limit" && return
    [ -z "$(sh "${0%/*}/nodes_down.sh" "$limit" "$node")" ] || return 1
    node_starts_process "$retry_limit"
}

before='' looks=0 counted=''
while sleep 5; do
    now=$(last_heartbeat) || now=none
    if [ "$now" != "$before" ]; then
        before=$now looks=0
        continue
    fi
    looks=$((looks + 1)) # not seconds: this process may have been suspended like the script
    [ "$looks" -ge 12 ] || continue
    looks=0
    [ "$now" != none ] || exit 0
    case $(job_state) in
        RUNNING) ;;
        SUSPENDED | STOPPED | SIGNALING | RESIZING | '') continue ;; # or nobody answers
        *) exit 0 ;;
    esac
    ! node_answers || continue
    echo "guard.sh on $(uname -n): no sign of life from $node for a minute, so: $*" >>"$log"
    if [ -z "$counted" ]; then
        [ "$1" != scontrol ] || echo "$count $job" >>"$requeues"
        # of the attempt of the line before
        date '+{"ended": %s.%3N}' >>"${requeues%/*}/goodput.jsonl"
        counted=1
    fi
    code=0
    timeout --kill-after=5 60 "$@" >>"$log" 2>&1 || code=$?
    case $code in
        0) exit 0 ;;
        124 | 137) continue ;; # no answer: look again, as it may be under way
    esac
    timeout --kill-after=5 60 scancel "$job"
done
