#!/bin/sh
# podman_init.sh COMMAND...: the first process of a container, which ends with the command. Podman
# repeats signals (one SIGTERM comes three times, in 4.3), and a torchrun that gets a second one
# leaves its ranks while they save. So the command gets the first one alone; under Slurm none, as
# Slurm itself signals every process of a job.
exec 3<&0
"$@" <&3 3<&- & # else a command in the background reads /dev/null
command=$!
sent=${SLURM_JOB_ID:-}
trap '[ -n "$sent" ] || kill -TERM "$command"; sent=1' TERM
trap : INT USR1 HUP
while true; do
    wait "$command"
    code=$?
    kill -0 "$command" 2>/dev/null || exit "$code" # it lives: a trap has ended wait
done
