#!/bin/sh
# end_ranks.sh PATTERN [SECONDS [GROUP]]: end what launches have left on this node, the processes of
# this user with a SLIPWAY_LAUNCH in their environment that PATTERN, a basic regular expression,
# matches as a whole, and the process group GROUP: wait SECONDS (0) for them, then kill them, and
# what they start meanwhile. Fails if some live on 10 s later, as in a read from a dead disk.
set -u
pattern=$1 seconds=${2:-0} group=${3:-}

# Print their numbers. A job that was submitted by a rank has inherited the variable.
ranks() {
    grep --files-with-matches --no-messages --null-data --line-regexp \
        -e "SLIPWAY_LAUNCH=$pattern" /proc/[0-9]*/environ |
        while read -r file; do
            number=${file#/proc/}
            is_other_jobs "$file" || echo "${number%/environ}"
        done
}

# is_other_jobs FILE: whether that environment names another job than this one.
is_other_jobs() {
    for own in "PBS_JOBID=${PBS_JOBID:-}" "SLURM_JOB_ID=${SLURM_JOB_ID:-}"; do
        if [ -n "${own#*=}" ] &&
            grep --quiet --no-messages --null-data -e "^${own%%=*}=" "$1" &&
            ! grep --quiet --no-messages --null-data --line-regexp --fixed-strings \
                -e "$own" "$1"; then
            return 0
        fi
    done
    return 1
}

# Whether the group has processes; once it has none, its number may be another's.
group_lives() {
    [ -n "$group" ] || return 1
    kill -0 -- "-$group" 2>/dev/null || group=''
    [ -n "$group" ]
}

looks=$((seconds * 5))
while [ "$looks" -gt 0 ] && { group_lives || [ -n "$(ranks)" ]; }; do
    looks=$((looks - 1))
    sleep 0.2
done
! group_lives || kill -KILL -- "-$group" 2>/dev/null
looks=50
while found=$(ranks) && [ -n "$found" ]; do
    [ "$looks" -gt 0 ] || exit 1
    looks=$((looks - 1))
    # shellcheck disable=SC2086 # numbers
    kill -KILL $found 2>/dev/null
    sleep 0.2
done
exit 0
