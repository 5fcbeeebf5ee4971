'for ((rank = 0; rank < $0; rank++)); do
            export RANK=$((NODE_RANK * $0 + rank)) LOCAL_RANK=$rank WORLD_SIZE=$TRAINER_WORLD_SIZE LOCAL_WORLD_SIZE=$TRAINER_RANKS_PER_NODE
            @{names}"$@" & ranks+=($!)
        done
        for pid in "${ranks[@]}"; do wait "$pid" || code=$?; done; exit "${code:-0}"'
