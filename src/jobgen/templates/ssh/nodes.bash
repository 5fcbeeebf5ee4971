'for node in $0; do # environment, folder and command go in by standard input, which ends when this script does
        @{remote_shell} "$node" bash 0<> <(export -p; echo "{ cd ${PWD@Q}; unset SSH_CLIENT SSH2_CLIENT; exec 3<&0
            export NODE_RANK=${#started[@]} PET_NODE_RANK=${#started[@]}; ${*@Q} 3<&- </dev/null & command=\$!
            { read -r; kill 0; } <&3 >/dev/null 2>&1 & wait \$command; code=\$?; kill \$!; exit \$code; }") & started+=($!)
    done
    for pid in "${started[@]}"; do wait "$pid" || code=$?; done; exit "${code:-0}"'
