#!/bin/sh
# nodes_down.sh SECONDS NODE...: print those of the nodes that Slurm reports as unusable, as lines
# NODE STATE: down, failed, drained or not responding (also marked by * after the state). A node
# that is only draining or failing still runs its jobs. Prints nothing if Slurm does not answer
# within SECONDS.
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
