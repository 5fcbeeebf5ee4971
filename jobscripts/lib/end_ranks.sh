#!/bin/sh
# end_ranks.sh LAUNCH [SECONDS [GROUP]]: end what launches have left on this node (find_ranks.sh),
# and the process group GROUP: wait SECONDS (0) for them, then kill them, and what they start
# meanwhile. Fails if some live on 10 s later, as in a read from a dead disk.
set -u
launch=$1 seconds=${2:-0} group=${3:-}

# Whether the group has processes; once it has none, its number may be another's.
group_lives() {
    [ -n "$group" ] || return 1
    kill -0 -- "-$group" 2>/dev/null || group=''
    [ -n "$group" ]
}

# Print their numbers.
ranks() {
    sh "${0%/*}/find_ranks.sh" "$launch"
}

looks=$((seconds * 5))
while [ "$looks" -gt 0 ] && { group_lives || ranks >/dev/null; }; do
    looks=$((looks - 1))
    sleep 0.2
done
! group_lives || kill -KILL -- "-$group" 2>/dev/null
looks=50
while found=$(ranks) || [ $? -gt 1 ]; do # the library may be on a disk that has gone
    [ "$looks" -gt 0 ] || exit 1
    looks=$((looks - 1))
    # shellcheck disable=SC2086 # numbers
    kill -KILL $found 2>/dev/null
    sleep 0.2
done
exit 0
