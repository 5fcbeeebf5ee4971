#!/bin/sh
# preflight.sh DEVICE PATH...: the preflight of a node for a user script, inside the container.
# Checks that the paths exist and, if GPUs are needed, that the driver responds. Exits with 78 and a
# one-line error if not.
set -u
device=$1
shift
for path in "$@"; do
    if ! ls -d -- "$path" >/dev/null 2>&1; then
        echo "preflight: $(uname -n): error[cannot-read]: $path does not exist:" \
            "is it on a disk that all nodes share, and mounted in the container?" >&2
        exit 78
    fi
done
[ "$device" = cpu ] || exec python3 "$(dirname -- "$0")/check_gpus.py" "$device"
