if [ "$STAGE" = 1 ] && [ -n "$IMAGE$DATA" ]; then # one copy per node: ranks that all open the same files stall a shared disk
    size=$(du --dereference --summarize --total --block-size=1K -- ${IMAGE:+"$IMAGE"} ${DATA:+"$DATA"} | tail --lines=1 | cut --fields=1)
    "${per_node[@]}" bash -c '[ "$(df --output=avail --block-size=1K -- "${2%/*}" | tail --lines=1)" -gt "$1" ] || { echo "$HOSTNAME: ${2%/*} is too small" >&2 && exit 1; }
        umask 077 && mkdir --parents -- "$2" && cp --recursive --dereference --no-preserve=mode -- "${@:3}" "$2"' stage "$size" "$scratch" ${IMAGE:+"$IMAGE"} ${DATA:+"$DATA"} || die "STAGE: see above"
    IMAGE=${IMAGE:+$scratch/${IMAGE##*/}} DATA=${DATA:+$scratch/${DATA##*/}}
fi
