@{words} 2> >(trap '' TERM USR1; exec tee "$errors" >&2) &
step=$!
while interrupted=0; wait "$step" && code=0 || code=$?; [ "$interrupted" = 1 ]; do :; done # a trap ends wait
