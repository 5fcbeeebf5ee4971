#!/bin/sh
# preflight.sh DEVICE PATH...: the preflight of a node for a script that is not our trainer, inside
# the container: are the paths there, and does the driver answer where GPUs are needed? Ends with 78
# and a line if not.
set -u
device=$1
shift
for path in "$@"; do
    if ! ls -d -- "$path" >/dev/null 2>&1; then
        echo "preflight: $(uname -n): error[cannot-read]: $path is not there:" \
            "is it on a disk of all nodes, and bound into the container?" >&2
        exit 78
    fi
done
[ "$device" = cpu ] || exec python3 "$(dirname -- "$0")/check_gpus.py" "$device"
