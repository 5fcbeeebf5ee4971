script=$0 # Slurm runs a copy of it: Command= names the original, with its arguments
if [[ $script == */slurm_script ]]; then
    script=$(timeout 20 scontrol show job "$job_id" | sed --quiet 's/^ *Command=//p') ||
        script=$0
    script=${script%"${*:+ $*}"}
fi
