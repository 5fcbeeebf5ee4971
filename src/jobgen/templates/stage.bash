[ "$STAGE" != 1 ] || # one copy per node: ranks that all open the same files stall a shared disk
    "${per_node[@]}" bash -c 'needed=$(du --summarize --total --block-size=1K -- "${@:2}" | tail --lines=1 | cut --fields=1)
        [ "$(df --output=avail --block-size=1K -- "${1%/*}" | tail --lines=1)" -gt "$needed" ] || { echo "$HOSTNAME: ${1%/*} is too small" >&2 && exit 1; }
        mkdir --parents -- "$1" && cp --recursive -- "${@:2}" "$1"' stage "$scratch" ${IMAGE:+"$IMAGE"} ${DATA:+"$DATA"} || die "STAGE: see above"
[ "$STAGE" != 1 ] || IMAGE=${IMAGE:+$scratch/${IMAGE##*/}} DATA=${DATA:+$scratch/${DATA##*/}}
