#!/bin/sh
# guard.sh SECONDS LONGER HEART LOG NODE JOB REQUEUES COUNT COMMAND...: watch, from another node,
# the script of JOB, which runs on NODE and touches the file HEART every 10 s. If it has not done so
# for a minute and NODE starts no process (first_node_answers), append "COUNT JOB" to REQUEUES, the
# job's requeue count, and run COMMAND, which requeues or cancels the job. If COMMAND fails, cancel
# the job. Without this guard, a job that survives its first node (--no-kill) would hold its other
# nodes until the time limit. The guard ends with the job, even if no slurmd on this node ends it.
set -u
limit=$1 retry_limit=$2 heartbeat=$3 log=$4 node=$5 job=$6 requeues=$7 count=$8
shift 8

# last_heartbeat: print when HEART was last touched. Opens the file first, so that NFS gets the time
# from the server.
last_heartbeat() {
    stat --format=%Y - <"$heartbeat" 2>/dev/null
}

# job_state: print the job's state. `scontrol requeue` would also run a job again that has ended.
job_state() {
    timeout --kill-after=5 20 scontrol --oneliner show job "$job" 2>/dev/null |
        sed --quiet 's/.* JobState=\([^ ]*\).*/\1/p'
}

# node_starts_process SECONDS: return 0 if NODE starts a process within that time.
node_starts_process() {
    # The options override the binding of this job step, which is on another node.
    timeout --kill-after=5 "$1" srun --overlap --nodes=1 --ntasks=1 --cpu-bind=none --gres=none \
        --mem=0 --nodelist="$node" true 2>/dev/null
}

# first_node_answers: return 0 if NODE starts a process within SECONDS. If Slurm does not report it
# as out of service, try again within LONGER, because a busy controller is also slow.
first_node_answers() {
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
    looks=$((looks + 1)) # counts checks, not seconds: Slurm may have suspended the whole job
    [ "$looks" -ge 12 ] || continue
    looks=0
    [ "$now" != none ] || exit 0
    case $(job_state) in
        RUNNING) ;;
        SUSPENDED | STOPPED | SIGNALING | RESIZING | '') continue ;; # '': Slurm does not answer
        *) exit 0 ;;
    esac
    ! first_node_answers || continue
    echo "guard.sh on $(uname -n): no heartbeat from $node for a minute, so running: $*" >>"$log"
    if [ -z "$counted" ]; then
        [ "$1" != scontrol ] || echo "$count $job" >>"$requeues"
        # The end of the attempt in the previous line.
        date '+{"ended": %s.%3N}' >>"${requeues%/*}/goodput.jsonl"
        counted=1
    fi
    code=0
    timeout --kill-after=5 60 "$@" >>"$log" 2>&1 || code=$?
    case $code in
        0) exit 0 ;;
        124 | 137) continue ;; # no answer: check again, as the requeue may be in progress
    esac
    timeout --kill-after=5 60 scancel "$job"
done
