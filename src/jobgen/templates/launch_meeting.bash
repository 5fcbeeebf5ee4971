for _ in 1 2 3; do # somebody may hold the port, or take it between the test and the launch
    if "${container[@]}" python -c 'import socket, sys; socket.create_server(("", int(sys.argv[1])))' "$MASTER_PORT" 2>"$errors"; then
@{words} 2> >(trap '' TERM USR1; exec tee "$errors" >&2) &
        step=$!
        while interrupted=0; wait "$step" && code=0 || code=$?; [ "$interrupted" = 1 ]; do :; done # a trap ends wait
    fi
    grep --quiet --ignore-case 'address already in use' "$errors" || break
    MASTER_PORT=$((MASTER_PORT + 1))
done
