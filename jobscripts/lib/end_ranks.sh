#!/bin/sh
# end_ranks.sh LAUNCH SECONDS [GROUP]: end the processes that launches have left on this node
# (find_ranks.sh), and the process group GROUP. Waits SECONDS for them, then kills them and any
# processes that they start meanwhile. Fails if some still run 10 s later, for example in a read
# from a dead disk.
set -u
launch=$1 seconds=$2 group=${3:-}

# group_lives: return 0 if the group has processes. Once it has none, the function does not check it
# again, because another group can get its number.
group_lives() {
    [ -n "$group" ] || return 1
    kill -0 -- "-$group" 2>/dev/null || group=''
    [ -n "$group" ]
}

# ranks: print the process numbers of the ranks.
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
while found=$(ranks) || [ $? -gt 1 ]; do # above 1: find_ranks.sh itself failed, as on a dead disk
    [ "$looks" -gt 0 ] || exit 1
    looks=$((looks - 1))
    # shellcheck disable=SC2086 # numbers
    kill -KILL $found 2>/dev/null
    sleep 0.2
done
exit 0
