#!/usr/bin/env bash
# @{about}
#
@{header}
@{origin}
@{directives}
set -euo pipefail +o noglob
readonly script_name=@{script} scheduler=@{scheduler}
# Not what the environment holds under names that this script may leave unset.
unset -v run_dir restarted interactive slurm_record kept_folder kept_settings \
    sigterm_at bound_backends numa_binding site_downloads container_options
@{signals}
@{identity}
readonly job_id
@{given}

@{owners}
