@{head}

# The run folder. A later attempt, a requeue or `@{submit} RUN_DIR/job.sh`, runs the script and the
# library that are kept there, whatever has changed here since.
@{output}
run_dir=${SLIPWAY_RUN_DIR:-$SLIPWAY_OUTPUT/@{job}-$job_id${interactive:+-$(date +%H%M%S)}}
@{restarted}
if [ -n "${SLIPWAY_RUN_DIR:-}${restarted-1}" ] && [ -O "$run_dir" ] && [ -O "$run_dir/job.sh" ] &&
    ! [ "$0" -ef "$run_dir/job.sh" ]; then # it is not that script already
    refuse_shared "$EUID" "$run_dir" "$run_dir/job.sh"
    if ! grep --quiet "^readonly script_name=$script_name scheduler=$scheduler$" \
        "$run_dir/job.sh"; then
        echo "$script_name: error[folder-holds-run]: another script began $run_dir: submit its" \
            "job.sh to continue it" >&2 || :
        exit 78
    fi
    slipway_began="$$ $SECONDS $sigterm_at" exec bash "$run_dir/job.sh" "$@"
fi

# Settings. Set at submission, a variable wins:
# @{example}
@{settings}

# The site, @{site}. Exports that its nodes need stand here; set outside, a variable wins.
@{site_lines}

@{library}

@{calls}

@{launch}

@{finish}
