
# What was set where jobgen was run, wherever the environment of a submission does not reach a job
# (SBATCH_EXPORT=NONE). What the job's own environment sets wins.
given() { # NAME VALUE
    [ -n "${!1:-}" ] || export -- "$1=$2"
}
@{given}
