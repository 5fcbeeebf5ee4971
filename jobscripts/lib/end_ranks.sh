#!/bin/sh
# end_ranks.sh PATTERN: kill what launches have left on this node, the processes of this user with a
# SLIPWAY_LAUNCH in their environment that PATTERN, a basic regular expression, matches as a whole;
# and once more, what they have started meanwhile.
set -u
left=1
while [ "$left" = 1 ]; do
    left=0
    for process in /proc/[0-9]*; do
        if grep --quiet --no-messages --null-data --line-regexp \
            -e "SLIPWAY_LAUNCH=$1" "$process/environ"; then
            ! kill -KILL "${process#/proc/}" 2>/dev/null || left=1
        fi
    done
    [ "$left" = 0 ] || sleep 0.2
done
