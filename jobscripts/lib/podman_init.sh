#!/bin/sh
# podman_init.sh COMMAND...: the first process of a container; it ends with the command. Podman
# repeats signals (Podman 4.3 delivers one SIGTERM three times), and torchrun abandons its ranks
# while they save if it gets a second one. So the command gets only the first signal, and none under
# Slurm, because Slurm itself signals every process of a job.
exec 3<&0
"$@" <&3 3<&- & # without <&3 a background command reads /dev/null
command=$!
sent=${SLURM_JOB_ID:-}
trap '[ -n "$sent" ] || kill -TERM "$command"; sent=1' TERM
trap : INT USR1 HUP
while true; do
    wait "$command"
    code=$?
    kill -0 "$command" 2>/dev/null || exit "$code" # if it still runs, a trap interrupted `wait`
done
