
# Settings from the environment of jobgen, for sites that do not pass it to jobs
# (SBATCH_EXPORT=NONE). A variable in the job's environment takes precedence.
given() { # NAME VALUE
    [ -n "${!1:-}" ] || export -- "$1=$2"
}
@{given}
