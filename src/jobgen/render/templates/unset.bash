# Ignore inherited variables that have the names of this script's own.
unset -v run_dir restarted interactive slurm_record kept_folder kept_settings private_group \
    sigterm_at bound_backends numa_binding site_downloads container_options
