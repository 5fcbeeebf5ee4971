#!/usr/bin/env bash
# podman_run.bash OPTION...: run `podman run` with these options and all exported variables. The
# variables are passed by name, because `ps` shows values in arguments to other users. PATH and the
# library paths are not passed; the image has its own. So --env-host is not used, with which the
# host's values win (Podman 4.3, contrary to its manual).
#
# With the cgroup manager cgroupfs, a rootless container stays in the job's cgroup. With systemd,
# the default, its cgroup is outside, where the job's limits do not apply and the end of the job
# does not stop it. (--cgroups=disabled does not work with runc.)
set -euo pipefail
variables=()
while IFS= read -r name; do
    case $name in
        PATH | LD_LIBRARY_PATH | LD_PRELOAD) ;;
        *) variables+=(--env="$name") ;;
    esac
done < <(compgen -e)
exec podman --cgroup-manager=cgroupfs run "${variables[@]}" "$@"
