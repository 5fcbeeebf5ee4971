#!/bin/sh
# end_ranks.sh LAUNCH: kill what a launch has left on this node, the processes of this user with
# SLIPWAY_LAUNCH=LAUNCH in their environment; and once more, what they have started meanwhile.
set -u
left=1
while [ "$left" = 1 ]; do
    left=0
    for process in /proc/[0-9]*; do
        if grep --quiet --no-messages --null-data --line-regexp --fixed-strings \
            -e "SLIPWAY_LAUNCH=$1" "$process/environ"; then
            ! kill -KILL "${process#/proc/}" 2>/dev/null || left=1
        fi
    done
    [ "$left" = 0 ] || sleep 0.2
done
