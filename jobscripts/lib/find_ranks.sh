#!/bin/sh
# find_ranks.sh LAUNCH: print the numbers of this user's processes on this node that launches of
# this job have left: those whose variable SLIPWAY_LAUNCH is LAUNCH, in which * matches anything, or
# LAUNCH.nodeN, as remote_script sets it. Does not find processes that have overwritten their
# environment or do not allow reading it. Returns 1 if there are none.
set -u
pattern=$(printf '%s\n' "$1" | sed 's/[].[\^$]/\\&/g; s/\*/.*/g')

# belongs_to_other_job FILE: return 0 if the environment in FILE contains another job's number. A
# job that a rank has submitted inherits SLIPWAY_LAUNCH.
belongs_to_other_job() {
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

grep --files-with-matches --no-messages --null-data --line-regexp \
    -e "SLIPWAY_LAUNCH=$pattern\(\.node[0-9]*\)\?" /proc/[0-9]*/environ | {
    code=1
    while read -r file; do
        number=${file#/proc/}
        ! belongs_to_other_job "$file" || continue
        echo "${number%/environ}"
        code=0
    done
    exit "$code"
}
