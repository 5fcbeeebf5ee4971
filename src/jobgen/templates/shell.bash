#!/usr/bin/env bash
# @{about}
# This file goes at the end of the session.
set -euo pipefail +o noglob
readonly script_name=shell scheduler=@{scheduler}
# Not what the environment holds under names that this script may leave unset.
unset -v run_dir restarted interactive slurm_record kept_folder kept_settings \
    sigterm_at bound_backends numa_binding site_downloads container_options
@{identity}
readonly job_id
@{given}

@{owners}

# Settings, as a job has them.
@{output}
@{settings}

# The site, @{site}.
@{site_lines}

@{library}
source "$lib/shell.bash"

@{calls}
