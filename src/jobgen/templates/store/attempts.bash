for _ in 1 2 3; do # somebody may hold the port, or take it between the test and the launch
    "${container[@]}" python -c 'import socket, sys; socket.create_server(("", int(sys.argv[1])))' "$MASTER_PORT" 2>"$errors" && launch
    grep --quiet --ignore-case 'address already in use' "$errors" || break
    MASTER_PORT=$((MASTER_PORT + 1))
done
