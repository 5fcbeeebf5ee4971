#!/usr/bin/env bash
# @{about}
#
@{header}
@{origin}
@{directives}
set -euo pipefail
readonly script_name=@{script} scheduler=@{scheduler}
@{identity}
readonly job_id

# Settings. Set at submission, a variable wins:
# SLIPWAY_VARIANT=cpu @{submit} @{path}
@{settings}

# The site, @{site}. Exports that its nodes need stand here; set outside, a variable wins.
@{site_lines}

@{library}
source "$lib/build.bash"

@{calls}
