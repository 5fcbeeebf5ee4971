# shellcheck shell=bash
# A loop over the nodes, for launchers that start each node by a command of its own.

# for_each_node FUNCTION ARGUMENT...: run `FUNCTION NUMBER ARGUMENT...` for each of the nodes, whose
# numbers begin at 0, all at the same time, each in a process of its own that FUNCTION replaces by
# exec. Where one fails, and on SIGTERM, all are sent SIGTERM. Returns the exit code of the first
# that failed.
for_each_node() {
    local number stopped='' started=()
    # $! may not be in `started` yet.
    trap 'stopped=1; end_nodes "${started[@]}" "${!:-}"' TERM
    for number in "${!nodes[@]}"; do
        [ -z "$stopped" ] || break
        "$1" "$number" "${@:2}" &
        started+=($!)
    done
    until_nodes_end "${started[@]}"
}

# until_nodes_end PID...: wait for all. When the first fails, end the others. Returns its exit code.
# `wait -n` would miss a process that a signal ended early (Bash 4.4 to 5.2), and plain `wait` the
# failure of any but the first of them.
until_nodes_end() {
    local pid ended code=0 left=("$@") alive nothing
    exec {nothing}<> <(:)
    while [ ${#left[@]} -gt 0 ]; do
        alive=()
        for pid in "${left[@]}"; do
            if kill -0 "$pid" 2>/dev/null; then
                alive+=("$pid")
                continue
            fi
            ended=0
            wait "$pid" || ended=$?
            [ "$ended" != 0 ] && [ "$code" = 0 ] || continue
            code=$ended
            end_nodes "${left[@]}"
        done
        left=("${alive[@]}")
        # A short sleep that starts no process.
        [ ${#left[@]} -eq 0 ] || read -r -t 0.2 <&"$nothing" || :
    done
    exec {nothing}>&-
    return "$code"
}

# end_nodes PID...: send SIGTERM to those that still run.
end_nodes() {
    kill "$@" 2>/dev/null || :
}
