@{head}

# The run folder. Later attempts (a requeue, or `@{submit} RUN_DIR/job.sh`) run the copies of the
# script and the library in it, whatever has changed in the clone.
@{output}
run_dir=${SLIPWAY_RUN_DIR:-$SLIPWAY_OUTPUT/@{job}-$job_id${interactive:+-$(date +%H%M%S)}}
@{restarted}
if [ -n "${SLIPWAY_RUN_DIR:-}${restarted-1}" ] && [ -O "$run_dir" ] && [ -O "$run_dir/job.sh" ] &&
    ! [ "$0" -ef "$run_dir/job.sh" ]; then # unless this is that script
    refuse_shared "$EUID" "$run_dir" "$run_dir/job.sh"
    if ! grep --quiet "^readonly script_name=$script_name scheduler=$scheduler$" \
        "$run_dir/job.sh"; then
        echo "$script_name: error[folder-holds-run]: another script began $run_dir: submit" \
            "$run_dir/job.sh to continue it" >&2 || :
        exit 78
    fi
    slipway_began="$$ $SECONDS $sigterm_at" exec bash "$run_dir/job.sh" "$@"
fi

# Settings. A variable that is set at submission takes precedence:
# @{example}
@{settings}

# Site @{site}: launcher, container runtime and environment of its nodes.
@{site_lines}

@{library}

@{calls}

@{launch}

@{finish}
