launch() { # its errors go to a file, and from there, as they come, to the job's log
    @{words} 2>"$errors" & step=$! SECONDS=0
    (trap '' TERM USR1; exec tail --lines=+1 --follow --sleep-interval=0.2 --pid="$step" -- "$errors" >&2) & log=$!
    while interrupted=0; wait "$step" && code=0 || code=$?; [ "$interrupted" = 1 ]; do :; done && wait "$log" || : # a trap ends wait
}
