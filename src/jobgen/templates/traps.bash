stop() { interrupted=1 && (set -o noclobber && echo "$1" >"$RUN_DIR/STOP") 2>/dev/null || :; } # a STOP that is there stays
