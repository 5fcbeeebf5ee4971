stop() { if [ ! -e "$RUN_DIR/STOP" ] || grep --quiet '^time-limit' "$RUN_DIR/STOP"; then echo "$1" >"$RUN_DIR/STOP"; fi; } # a user's STOP stays
trap 'interrupted=1; stop "time-limit $job_id/$TRAINER_ATTEMPT"' USR1
trap 'interrupted=1; stop user' TERM # qdel: PBS tells only what it started, which is no process behind a remote shell
late() { qstat -f "$PBS_JOBID" | awk -F '[ =:]+' -v used="$SECONDS" '/Resource_List.walltime/ { late = $3 * 3600 + $4 * 60 + $5 - used < @{save_seconds} } END { exit !late }'; }
exec 9> >(until late; do read -r -t 20 || [ $? -gt 128 ] || exit 0; done; kill -USR1 $$) # looks at the clock while this script lives
