#!/bin/sh
# end_ranks.sh LAUNCH: kill what a launch has left on this node, the processes of this user with
# SLIPWAY_LAUNCH=LAUNCH in their environment.
set -u
for process in /proc/[0-9]*; do
    ! grep --quiet --no-messages --null-data --line-regexp --fixed-strings \
        -e "SLIPWAY_LAUNCH=$1" "$process/environ" ||
        kill -KILL "${process#/proc/}" 2>/dev/null
done
exit 0
