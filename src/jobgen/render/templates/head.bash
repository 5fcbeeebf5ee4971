#!/usr/bin/env bash
# @{about}
#
@{header}
@{origin}
@{directives}
set -euo pipefail +o noglob +o allexport
readonly script_name=@{script} scheduler=@{scheduler}
@{unset}
@{signals}
@{identity}
readonly job_id
@{given}

@{owners}
