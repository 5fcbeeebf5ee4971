for _ in 1 2 3; do # somebody may hold the port, or take it between the test and the launch
    if "${container[@]}" python -c 'import socket, sys; socket.create_server(("", int(sys.argv[1])))' "$MASTER_PORT" 2>"$errors"; then launch; else cat -- "$errors" >&2; fi
    if [ "$code" = 0 ] || [ -e "$RUN_DIR/status.json" ] || [ "$SECONDS" -gt 120 ] || ! grep --quiet --ignore-case 'address already in use' "$errors"; then break; fi
    MASTER_PORT=$((MASTER_PORT + 1))
done
