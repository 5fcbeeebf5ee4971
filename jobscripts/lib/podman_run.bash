#!/usr/bin/env bash
# podman_run.bash WORD...: `podman run` with these words, and with the variables that are exported
# here, by their names: values in arguments could be seen by everybody (ps). Without those by which
# the host's programs and libraries are found; the image has its own. Hence not --env-host, by which
# the host's win (Podman 4.3, against its manual).
#
# cgroupfs: so a rootless container stays in the job's cgroup. By systemd, the default, it would get
# one outside, where neither the job's limits nor its end reach it. (--cgroups=disabled is refused
# with runc.)
set -euo pipefail
variables=()
while IFS= read -r name; do
    case $name in
        PATH | LD_LIBRARY_PATH | LD_PRELOAD) ;;
        *) variables+=(--env="$name") ;;
    esac
done < <(compgen -e)
exec podman --cgroup-manager=cgroupfs run "${variables[@]}" "$@"
