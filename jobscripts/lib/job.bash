# shellcheck shell=bash
# Main file of the job scripts' library: start reading here. A job script sources this file, or its
# scheduler's file that sources it, and calls the library's functions one after the other. The nodes
# need Bash 4.4 and GNU coreutils, and nothing else of the project.
#
# The functions read the settings (jobscripts/lib/settings.bash); the script's variables
# `script_name`, `scheduler`, `job_id` and `run_dir`; and the variables that earlier functions have
# set. The comment above each function lists the variables that it sets. If a job cannot work, a
# function calls `die`, which ends the job before a rank has started.

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
    echo "$0: error[old-bash]: Bash $BASH_VERSION is too old: use 4.4 or later" >&2 || :
    exit 78
fi

# Reset the shell options that the environment (SHELLOPTS, BASHOPTS, POSIXLY_CORRECT, BASH_ENV) may
# have set. The scripts themselves turn off noglob and allexport, because they list the files of
# this folder and set variables before they source this file.
set +o posix +o noclobber
shopt -u nullglob failglob nocasematch
shopt -u localvar_inherit 2>/dev/null || : # Bash 4.4 does not have it

# OWN_NAMES are the library's own variables. They include the local variables that have a value
# while the ranks are started, because the ranks would inherit them. SCRIPT_NAMES are the variables
# that scripts set before they source this file. The environment may contain variables with these
# names, such as `export scratch=/scratch/$USER` from a profile. They are not meant for a job: the
# library does not read them, does not pass them to the ranks, and check_settings lists them in a
# warning.
readonly OWN_NAMES=(
    COPY GUARD STEP allocation answer arguments attempt began_at bind_paths binds
    build_may_run busy cancelled cause cause_code chosen_nodes cleanup_seconds client
    cluster code container copier count_common cpus cpus_per_rank data data_image
    data_kind data_refusal deferred_signals devices_per_rank entry_point_is_checked
    errors failed failures first_node_is_probed first_port first_step from_server
    given_address gpu_options gpus_per_node gpus_seen guard guard_node head_node
    healthy_nodes heartbeat held_since image input its_host its_job its_process
    its_scheduler job_record last_message launch_id launch_pid log log_dir lost_nodes
    master_address_is_found memory memory_total mount_point mpirun mpirun_exports
    next_job nnodes node_states nodes nodes_holder notifier numa_options on_head_node
    output pause planned_nodes port_is_given program query_at ranks_per_node reason
    rendezvous request requeue_reason restarts restarts_without_progress run_mark
    save_at saved_traps scratch scratch_id scratch_record scratch_watch script_file
    server server_file shared_above spare_nodes start_environment started state step
    step_failure step_may_run step_retried_in step_timed_out taken_names terminal
    this_node time_is_up time_is_watched time_limit_came trainer_arguments try
    unfinished venv verdict_seconds watcher world_size
)
readonly SCRIPT_NAMES=(
    bound_backends command container_options container_runtime directives_cpus
    directives_gpus interactive job_id job_variables kept_folder kept_job kept_run_dir
    kept_settings launcher lib limit mpirun_options nap numa_binding owner path private_group
    record remote_shell restarted run_dir save_seconds scheduler script script_name sigterm_at
    site_downloads slurm_record srun_options submit_folder
)

# set_taken_names: unset or unexport the variables of the environment that have one of these names.
# Sets taken_names, the names of those that were exported.
set_taken_names() {
    local name taken=()
    while IFS= read -r name; do
        [[ " ${OWN_NAMES[*]} ${SCRIPT_NAMES[*]} " != *" $name "* ]] || taken+=("$name")
    done < <(compgen -e)
    unset -v "${OWN_NAMES[@]}"
    export -n "${SCRIPT_NAMES[@]}"
    taken_names=("${taken[@]}")
}
set_taken_names

source "${BASH_SOURCE[0]%/*}/settings.bash"
source "${BASH_SOURCE[0]%/*}/errors.bash"
source "${BASH_SOURCE[0]%/*}/owners.bash"
source "${BASH_SOURCE[0]%/*}/run_folder.bash"
source "${BASH_SOURCE[0]%/*}/attempts.bash"
source "${BASH_SOURCE[0]%/*}/saved_job.bash"
source "${BASH_SOURCE[0]%/*}/data.bash"
source "${BASH_SOURCE[0]%/*}/container.bash"
source "${BASH_SOURCE[0]%/*}/scratch.bash"
source "${BASH_SOURCE[0]%/*}/python.bash"
source "${BASH_SOURCE[0]%/*}/ranks.bash"
source "${BASH_SOURCE[0]%/*}/rendezvous.bash"
source "${BASH_SOURCE[0]%/*}/program.bash"
source "${BASH_SOURCE[0]%/*}/nodes.bash"
source "${BASH_SOURCE[0]%/*}/signals.bash"
source "${BASH_SOURCE[0]%/*}/steps.bash"
source "${BASH_SOURCE[0]%/*}/launch.bash"
source "${BASH_SOURCE[0]%/*}/finish.bash"
source "${BASH_SOURCE[0]%/*}/restart.bash"
source "${BASH_SOURCE[0]%/*}/healthy_nodes.bash"
source "${BASH_SOURCE[0]%/*}/leftovers.bash"
source "${BASH_SOURCE[0]%/*}/account.bash"
source "${BASH_SOURCE[0]%/*}/notify.bash"

readonly LIBRARY_VERSION=0.1.0
readonly EXIT_STOPPED=75 # EX_TEMPFAIL of sysexits.h: stopped early; the run can be continued
readonly EXIT_CONFIG=78  # EX_CONFIG: the job would fail again unless something is changed

# The environment in which the script was started, as NAME=VALUE, for the jobs that it submits.
mapfile -d '' -t start_environment < <(env --null)

began_at=$(epoch_seconds) # for goodput.jsonl
run_mark=none   # for builds and `jobgen shell`, which have no run folder

# The absolute path of this script, which stays valid after `cd`.
script_file=$(realpath -- "$0")

# restore_environment: export start_environment and nothing else. Call it in a subshell. No value
# becomes an argument of a program, because `ps` would show it to other users.
restore_environment() {
    local name pair
    while IFS= read -r name; do
        # shellcheck disable=SC2163 # unexports the variable whose name is in `name`
        export -n "$name"
    done < <(compgen -e)
    for pair in "${start_environment[@]}"; do
        export_pair "$pair"
    done
}

# export_pair NAME=VALUE: export a line of `env --null`. Skips exported functions and Bash's
# read-only variables.
export_pair() {
    local name=${1%%=*}
    if [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] &&
        [[ ! $(declare -p "$name" 2>/dev/null) =~ ^declare\ -[A-Za-z]*r ]]; then
        # shellcheck disable=SC2163 # the argument is NAME=VALUE
        export -- "$1"
    fi
}

# log MESSAGE: print one line to the job's log. A full disk is not an error. Sets last_message.
log() {
    last_message=$*
    echo "$script_name: $*" >&2 || :
}

# error SLUG MESSAGE: log an error. docs/reference/errors.md describes each slug.
error() {
    log "error[$1]: ${*:2}"
}

# warn SLUG MESSAGE: log a warning, after which the job continues.
warn() {
    log "warning[$1]: ${*:2}"
}

# die SLUG MESSAGE: log an error and exit with the slug's exit code.
die() {
    error "$@"
    exit "${ERROR_CODE[$1]}"
}

# query_scheduler COMMAND...: run a command that only reads the scheduler's state, with a time limit
# of SLIPWAY_PROBE_SECONDS. If it times out, run it once more with three times that limit. Returns
# the command's exit code, or 124 (137 if it had to be killed) if it timed out twice.
query_scheduler() {
    local code=0
    timeout --kill-after=5 "$SLIPWAY_PROBE_SECONDS" "$@" || code=$?
    [[ $code == 124 || $code == 137 ]] || return "$code"
    timeout --kill-after=5 "$(retry_limit)" "$@"
}

# export_to_ranks NAME=VALUE...: export the variables to the ranks and record them in
# SLIPWAY_EXPORTED. A job that is submitted from inside this one reads SLIPWAY_EXPORTED to find the
# variables that are not its own.
export_to_ranks() {
    # shellcheck disable=SC2163 # the arguments are NAME=VALUE
    export -- "$@"
    printf -v SLIPWAY_EXPORTED '%s\n' "${SLIPWAY_EXPORTED:-}" "$@"
    export SLIPWAY_EXPORTED
}

# unset_parent_job_variables: unset the variables inherited from the job that submitted this one,
# except those that were changed since. Also unset the variables by which a launcher numbers a rank.
unset_parent_job_variables() {
    local pair name
    while IFS= read -r pair; do
        name=${pair%%=*}
        [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || continue
        [ "${!name-}" != "${pair#*=}" ] || unset -v "$name"
    done <<<"${SLIPWAY_EXPORTED:-}"
    unset -v SLIPWAY_EXPORTED
    unset -v RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK PET_NODE_RANK \
        PMI_RANK PMI_SIZE PMIX_RANK PMIX_NAMESPACE \
        HOROVOD_RANK HOROVOD_LOCAL_RANK HOROVOD_CROSS_RANK HOROVOD_HOSTNAME \
        "${!TORCHELASTIC_@}" "${!OMPI_COMM_WORLD_@}"
}

# check_settings: check every setting against its pattern and make paths absolute. Sets run_mark,
# which distinguishes the job steps and launches of this run from those of another run in the same
# job. Fails if a value is invalid. Writes nothing to disk.
check_settings() {
    local name
    catch_early_sigterm
    [ -z "$lib" ] || refuse_shared_above "$lib" # empty: the library is inside this script
    unset_parent_job_variables
    [ ${#taken_names[@]} -eq 0 ] ||
        warn taken-name \
            "the environment sets variables that this script uses itself; they are not passed on:" \
            "$(join_by ', ' "${taken_names[@]}")"
    for name in "${!SLIPWAY_@}"; do
        [ -v "SETTING_EXPECTED[$name]" ] || [[ " ${OTHER_VARIABLES[*]} " == *" $name "* ]] ||
            warn unknown-setting \
                "$name is set, but is not a setting: docs/reference/settings.md lists the settings"
    done
    for name in "${SETTINGS[@]}"; do
        check_setting "$name"
    done
    log_missing_environment
    [ -z "${SLIPWAY_ARGS:-}" ] || declare -F read_arguments >/dev/null ||
        die misplaced-arguments \
            "this script does not read SLIPWAY_ARGS: put the arguments after the script's name"
    # A job that is submitted from inside this one must not inherit its run folder and arguments.
    export -n SLIPWAY_RUN_DIR SLIPWAY_ARGS
    [ -d "$submit_folder" ] || [ -n "${kept_folder:-}" ] ||
        die cannot-read "$submit_folder does not exist on $HOSTNAME: is its disk mounted there?"
    for name in "${PATH_SETTINGS[@]}"; do
        make_absolute "$name"
        check_setting "$name" # again, as the path now contains the submission folder
    done
    if [ -n "${run_dir:-}" ]; then
        run_dir=$(realpath --canonicalize-missing -- "$run_dir")
        run_mark=$(sha256sum <<<"$run_dir")
        run_mark=${run_mark:0:16}
    fi
    check_notify
    # A continued run uses the working directory of its first job, if that folder still exists.
    [ ! -d "${kept_folder:-}" ] || cd -- "$kept_folder" ||
        die cannot-read "cannot enter $kept_folder"
}

# log_settings: log the settings that were set by the environment, by `jobgen submit` or by an
# earlier attempt.
log_settings() {
    local name words=()
    for name in "${SETTINGS[@]}"; do
        [ -z "${!name:-}" ] || ! is_exported "$name" || words+=("$name=${!name@Q}")
    done
    [ ${#words[@]} -eq 0 ] || log "set at submission: ${words[*]}"
}

# log_missing_environment: warn if the job did not get the environment of its submission. Does
# nothing by default. (slurm.bash overrides this default.)
log_missing_environment() {
    :
}

# check_backend NAME...: check BACKEND against the backends that this script can launch. Fails if
# BACKEND is another one.
check_backend() {
    [[ " $* " != *" $BACKEND "* ]] || return 0
    die wrong-backend "BACKEND=$BACKEND: this script launches $(join_by ' or ' "$@");" \
        "\`jobgen render ${BACKEND/#horovod/horovod-gloo} --site SITE\` writes one for that"
}

# check_setting NAME: check the value of one setting. Fails if the value does not match the
# setting's pattern.
check_setting() {
    local LC_ALL=C # file names may contain bytes that are invalid in the user's encoding
    local pattern=${SETTING_PATTERN[$1]:-}
    [ -n "$pattern" ] && [ -n "${!1+set}" ] || return 0
    [[ ${!1} =~ $pattern ]] || die bad-value "$1 is ${!1@Q}: it must be ${SETTING_EXPECTED[$1]}"
}

# make_absolute NAME: make the setting's path absolute. Relative paths start at the submission
# folder.
make_absolute() {
    [ -n "${!1:-}" ] || return 0
    case $1=${!1} in # values that are not paths
        SLIPWAY_VENV=local | SLIPWAY_VENV=modules | SLIPWAY_VENV=conda:*) return ;;
        SLIPWAY_SCRIPT="-m "*) return ;;
        SLIPWAY_IMAGE=*) ! image_is_name || return 0 ;;
    esac
    local links=()
    [ "$1" != SLIPWAY_VENV ] || links=(--no-symlinks) # keep the link that venv_build.job makes
    printf -v "$1" %s "$(realpath --canonicalize-missing "${links[@]}" -- "${!1}")"
}

# image_is_name: return 0 if SLIPWAY_IMAGE is the name of an image, not a path: docker://NAME,
# localhost/NAME, or docker-archive:FILE.
image_is_name() {
    [[ $SLIPWAY_IMAGE == *://* || $SLIPWAY_IMAGE == *-archive:* || $SLIPWAY_IMAGE == localhost/* ]]
}

# require SLUG KIND NAME [REMEDY]: check the path in the setting NAME. KIND is file, folder, or
# `file or folder`. Fails with SLUG if the path cannot be read or is of another kind. A FIFO is
# refused because reading it would block.
require() {
    local slug=$1 kind=$2
    shift 2
    [ -r "${!1}" ] ||
        die "$slug" "$1: ${!1} is missing or cannot be read; ${2:-see the settings in this script}"
    [[ $kind == *file* && -f ${!1} ]] || [[ $kind == *folder* && -d ${!1} ]] ||
        die "$slug" "$1: ${!1} is not a $kind"
}

# join_by SEPARATOR WORD...: print the words on one line, with SEPARATOR between them.
join_by() {
    local separator=$1 joined
    shift
    printf -v joined "%s$separator" "$@"
    echo "${joined%"$separator"}"
}

# library_identity: print the library's version and a checksum of all its files, for the log.
library_identity() {
    local sum
    sum=$(cat -- "$lib"/*.* | sha256sum)
    echo "library $LIBRARY_VERSION (sha256 ${sum:0:12})"
}

# load_modules PURGE NAME...: load environment modules. If PURGE is 1, first unload the modules of
# the submission's shell. Fails if a module cannot be loaded, or if the scheduler's commands are not
# on PATH afterwards: at some sites Slurm itself is a module.
load_modules() {
    local command
    type module >/dev/null 2>&1 ||
        die no-modules \
            "the site file lists modules, but $HOSTNAME has no \`module\` command"
    set +u # `module` reads unset variables
    if [ "$1" = 1 ]; then
        module purge
        unset -v PYTHONPATH # from the submission's shell; the modules set their own
    fi
    shift
    module load "$@" || die no-modules "cannot load the modules $* on $HOSTNAME"
    set -u
    for command in "${SCHEDULER_COMMANDS[@]}"; do
        type -P "$command" >/dev/null ||
            die no-modules \
                "$command is not on PATH after \`module purge\`: set purge_modules = false in the" \
                "site file"
    done
}
