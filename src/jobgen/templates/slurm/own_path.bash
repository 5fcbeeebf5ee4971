script=$(realpath -- "$0")
if [[ $script == */slurm_script ]]; then # Slurm's copy: Command= names the original, with arguments
    script=$(timeout 20 scontrol show job "$job_id" | sed --quiet 's/^ *Command=//p') || script=$0
    script=${script%"${*:+ $*}"}
fi
