#!/bin/sh
# nodes_down.sh SECONDS NODE...: print those of which Slurm says that no job can use them, as lines
# NODE STATE: they are down, have failed or are drained, or do not respond (a * behind the state,
# too). One that is only draining or failing still runs its jobs. Nothing where Slurm does not
# answer within so long.
set -u
limit=$1
shift
IFS=,
timeout --kill-after=5 "$limit" scontrol --oneliner show node "$*" 2>/dev/null | awk '{
    for (field = 1; field <= NF && $field !~ /^State=/; field++);
    sub("^NodeName=", "", $1)
    down = $field ~ /DOWN|NOT_RESPONDING|[*]/
    if (down || ($field ~ /DRAIN|FAIL/ && $field !~ /ALLOC|MIX/))
        print $1, substr($field, 7)
}'
