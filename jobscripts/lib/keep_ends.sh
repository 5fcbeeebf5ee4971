#!/bin/sh
# keep_ends.sh FILE: copy standard input to FILE, as it comes, until all who write it have closed
# it. Of more than FIRST and LAST bytes FILE keeps those, and a line between them that counts the
# others; it is shortened when it has MOST bytes, and at the end. At any time it is a whole file, in
# place of which a shorter one is put. What comes while it cannot be written is read, and dropped,
# and all the rest once it cannot be shortened: no writer must ever wait, or get SIGPIPE.
set -u
file=$1
FIRST=1000000 LAST=9000000 MOST=18000000
left_out=0 mark='' before=0

# Shorten FILE, which has `size` bytes. Sets size, left_out and mark.
shorten() {
    left_out=$((left_out + size - FIRST - LAST - ${#mark}))
    mark="
[$left_out bytes are left out here]
"
    {
        head --bytes="$FIRST" -- "$file" &&
            printf '%s' "$mark" &&
            tail --bytes="$LAST" -- "$file"
    } >"$file.new" && mv --force -- "$file.new" "$file" || return 1
    size=$((FIRST + LAST + ${#mark}))
}

# dd writes what it has read before it reads again, so nothing waits for more: at most 2 MiB a turn.
while :; do
    if ! {
        dd bs=8192 count=256 status=none >>"$file" && size=$(stat --format=%s -- "$file")
    }; then
        exec 2>/dev/null # said once
        [ "$(dd bs=65536 count=1 status=none | wc -c)" -gt 0 ] || exit 0
        continue
    elif [ "$size" = "$before" ]; then # end of file
        [ "$size" -le $((FIRST + LAST + ${#mark})) ] || shorten
        exit
    fi
    [ "$size" -le "$MOST" ] || shorten || break
    before=$size
done
rm -f -- "$file.new"
exec cat >/dev/null
