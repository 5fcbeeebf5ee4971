#!/usr/bin/env bash
# rank_loop.bash COMMAND...: start the ranks of this node, if no launcher does. NODE_RANK contains
# the number of the node. Returns the exit code of a rank that failed. Forwards SIGTERM to all
# ranks, and sends SIGKILL to those that still run after KILL_SECONDS.
set -euo pipefail
readonly KILL_SECONDS=30 # like torchrun
unset -v here ranks killer local_rank # if exported, the ranks would inherit this script's values
here=$(dirname -- "$0")
ranks=()
killer=''

# stop_ranks: send all ranks SIGTERM, for the trap. Sets killer, the process that sends SIGKILL
# later.
stop_ranks() {
    kill -TERM "${ranks[@]}" 2>/dev/null || :
    [ -z "$killer" ] || return 0
    (
        trap '' TERM INT HUP
        exec {nothing}<> <(:)
        read -r -t "$KILL_SECONDS" <&"$nothing" || : # sleeps without starting a process
        kill -KILL "${ranks[@]}"
    ) >/dev/null 2>&1 &
    killer=$!
}

trap stop_ranks TERM INT HUP
for ((local_rank = 0; local_rank < TRAINER_RANKS_PER_NODE; local_rank++)); do
    RANK=$((${NODE_RANK:-0} * TRAINER_RANKS_PER_NODE + local_rank)) LOCAL_RANK=$local_rank \
        sh "$here/name_rank.sh" given "$@" &
    ranks+=($!)
done
code=0
for rank in "${ranks[@]}"; do
    ended=0
    wait "$rank" || ended=$?
    while kill -0 "$rank" 2>/dev/null; do # a trap has interrupted `wait`
        ended=0
        wait "$rank" || ended=$?
    done
    [ "$ended" = 0 ] || code=$ended
done
[ -z "$killer" ] || kill -KILL "$killer" 2>/dev/null || :
exit "$code"
