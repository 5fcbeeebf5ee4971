#!/bin/sh
# find_ranks.sh LAUNCH: print the numbers of the processes on this node that launches of this job
# have left: those of this user whose SLIPWAY_LAUNCH is LAUNCH, where * stands for anything. Not
# found are those that have written over their environment, or let nobody read it. Fails with 1 if
# there are none.
set -u
pattern=$(printf '%s\n' "$1" | sed 's/[].[\^$]/\\&/g; s/\*/.*/g')

# belongs_to_other_job FILE: whether that environment names another job than this one: a job that
# was submitted by a rank has inherited the variable.
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
    -e "SLIPWAY_LAUNCH=$pattern" /proc/[0-9]*/environ | {
    code=1
    while read -r file; do
        number=${file#/proc/}
        ! belongs_to_other_job "$file" || continue
        echo "${number%/environ}"
        code=0
    done
    exit "$code"
}
