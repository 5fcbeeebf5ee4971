#!/usr/bin/env bash
# rank_loop.bash COMMAND...: start the ranks of this node, where nothing else does. NODE_RANK is the
# number of the node. Ends with the exit code of a rank that failed; SIGTERM goes on to all of them,
# and SIGKILL to those that live KILL_SECONDS later.
set -euo pipefail
readonly KILL_SECONDS=30 # as torchrun
unset -v here ranks killer local_rank # where they are exported, ranks would see other values
here=$(dirname -- "$0")
ranks=()
killer=''

# stop_ranks: for the trap. Sets killer, the process that waits with SIGKILL.
stop_ranks() {
    kill -TERM "${ranks[@]}" 2>/dev/null || :
    [ -z "$killer" ] || return 0
    (
        trap '' TERM INT HUP
        exec {nothing}<> <(:)
        read -r -t "$KILL_SECONDS" <&"$nothing" || : # a sleep that starts no process
        kill -KILL "${ranks[@]}" 2>/dev/null || :
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
    while kill -0 "$rank" 2>/dev/null; do # a trap ended wait
        ended=0
        wait "$rank" || ended=$?
    done
    [ "$ended" = 0 ] || code=$ended
done
[ -z "$killer" ] || kill -KILL "$killer" 2>/dev/null || :
exit "$code"
