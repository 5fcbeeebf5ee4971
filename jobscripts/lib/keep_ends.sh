#!/bin/sh
# keep_ends.sh FILE: copy standard input to FILE as it arrives, until all writers have closed it. If
# there are more bytes than FIRST and LAST together, FILE keeps the first FIRST and the last LAST
# bytes and, between them, a line with the number of bytes left out. FILE is shortened when it has
# MOST bytes, and at the end. It is replaced atomically, so it is complete at any time. If FILE
# cannot be written, the input is read and dropped meanwhile; if it cannot be shortened, the rest
# is. No writer may ever block or get SIGPIPE.
set -u
file=$1
FIRST=1000000 LAST=9000000 MOST=18000000
left_out=0 mark='' before=0

# shorten: shorten FILE, which has `size` bytes. Sets size, left_out and mark. Fails if FILE cannot
# be written.
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

# dd writes each block before it reads the next one, so no input is held back. 2 MiB per turn.
while :; do
    if ! {
        dd bs=8192 count=256 status=none >>"$file" && size=$(stat --format=%s -- "$file")
    }; then
        exec 2>/dev/null # dd has printed its message
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
