#!/usr/bin/env bash
# Trials of a sweep that `jobgen sweep` submitted together. The scheduler runs a copy of this file.
@{directives}
set -euo pipefail
readonly script_name=array.sh
@{given}

@{owners}

refuse_shared "$EUID" @{folder} @{submission}/.. @{submission} @{script}
case @{task} in
@{trials}
    *) exit 78 ;;
esac
export SLIPWAY_RUN_DIR=@{folder}/$trial
exec bash @{script} "${arguments[@]}"
