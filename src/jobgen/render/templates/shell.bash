#!/usr/bin/env bash
# @{about}
# This file is removed at the end of the session.
set -euo pipefail +o noglob +o allexport
readonly script_name=shell scheduler=@{scheduler}
@{unset}
@{identity}
readonly job_id
@{given}

@{owners}

# Settings, as in a job.
@{output}
@{settings}

# Site @{site}.
@{site_lines}

@{library}
source "$lib/shell.bash"

@{calls}
