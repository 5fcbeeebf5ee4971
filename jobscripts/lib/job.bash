# shellcheck shell=bash
# The library of the job scripts, and where to start reading: each script calls the functions of
# this folder one by one. Needs Bash 4.4 and GNU coreutils on the nodes, nothing else of the
# project.
#
# Functions read the settings (jobscripts/lib/settings.bash), `script_name`, `scheduler`, `job_id`
# and `run_dir` of the script, and the variables that the functions before them set. Each says above
# what it sets. Where a job cannot work, they call `die`, which ends it before a rank has started.

if ((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < 404)); then
    echo "$0: error[old-bash]: Bash 4.4 or later is needed, and this is $BASH_VERSION" >&2 || :
    exit 78
fi

# Not what the environment (SHELLOPTS, BASHOPTS, POSIXLY_CORRECT, BASH_ENV) may have set. Scripts
# turn noglob and allexport off themselves, as they look at the files of this folder and set
# variables first.
set +o posix +o noclobber
shopt -u nullglob failglob nocasematch
shopt -u localvar_inherit 2>/dev/null || : # Bash 4.4 has none

# Names of this library's own variables (of local ones those that hold something while the ranks are
# started, as they would inherit it), and of those that scripts set before they come here. What the
# environment holds under them, such as a profile's `export scratch=/scratch/$USER`, is not meant
# for a job: it is not read, nor handed to the ranks, and check_settings names it.
readonly OWN_NAMES=(
    COPY GUARD STEP allocation answer arguments ask_at attempt began_at bind_paths binds
    build_may_run busy cancelled cause cause_code chosen_nodes cleanup_seconds client
    cluster code container copier count_common cpus cpus_per_rank data data_image
    data_kind data_refusal devices_per_rank entry_point_is_checked errors failed
    failures first_port first_step from_server given_address gpu_options gpus_per_node
    gpus_seen guard guard_node head_is_tried head_node healthy_nodes heartbeat
    held_signals held_since held_traps image input its_host its_job its_process
    its_scheduler job_record last_note launch_id launch_pid log log_dir lost_nodes
    master_is_found memory memory_total mount_point mpirun mpirun_exports next_job
    nnodes node_states nodes nodes_holder notifier numa_options on_head_node output
    pause planned_nodes port_is_given program ranks_per_node reason rendezvous request
    requeue_reason restarts restarts_without_progress run_mark save_at scratch
    scratch_id scratch_record scratch_watch script_file server server_file shared_above
    spare_nodes start_environment started state step step_failure step_may_run
    step_repeated_in step_timed_out taken_names terminal this_node time_is_up
    time_is_watched time_limit_came trainer_arguments try unfinished venv
    verdict_seconds watcher world_size
)
readonly SCRIPT_NAMES=(
    bound_backends command container_options container_runtime directives_cpus
    directives_gpus interactive job_id job_variables kept_folder kept_job kept_run_dir
    kept_settings launcher lib limit mpirun_options nap numa_binding owner path private_group
    record remote_shell restarted run_dir save_seconds scheduler script script_name sigterm_at
    site_downloads slurm_record srun_options submit_folder
)

# set_taken_names: sets taken_names, those of them that were exported.
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
source "${BASH_SOURCE[0]%/*}/data.bash"
source "${BASH_SOURCE[0]%/*}/container.bash"
source "${BASH_SOURCE[0]%/*}/python.bash"
source "${BASH_SOURCE[0]%/*}/ranks.bash"
source "${BASH_SOURCE[0]%/*}/nodes.bash"
source "${BASH_SOURCE[0]%/*}/launch.bash"
source "${BASH_SOURCE[0]%/*}/restart.bash"
source "${BASH_SOURCE[0]%/*}/account.bash"
source "${BASH_SOURCE[0]%/*}/notify.bash"

readonly LIBRARY_VERSION=0.1.0
readonly EXIT_STOPPED=75 # EX_TEMPFAIL of sysexits.h: stopped early, and can be continued
readonly EXIT_CONFIG=78  # EX_CONFIG: trying again unchanged cannot help

# The environment in which the script was started, as NAME=VALUE, for jobs that it submits.
mapfile -d '' -t start_environment < <(env --null)

began_at=$(epoch_seconds) # for goodput.jsonl
run_mark=none   # of builds, and of sessions

# This script's own file, which no change of the folder makes another one.
script_file=$(realpath -- "$0")

# restore_environment: export start_environment and nothing else, for a subshell. No value becomes
# an argument, which `ps` would show.
restore_environment() {
    local name pair
    while IFS= read -r name; do
        # shellcheck disable=SC2163 # the variable of this name
        export -n "$name"
    done < <(compgen -e)
    for pair in "${start_environment[@]}"; do
        export_pair "$pair"
    done
}

# export_pair NAME=VALUE: of `env --null`, unless it is a function, or one of Bash's own that cannot
# be set.
export_pair() {
    local name=${1%%=*}
    if [[ $name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] &&
        [[ ! $(declare -p "$name" 2>/dev/null) =~ ^declare\ -[A-Za-z]*r ]]; then
        # shellcheck disable=SC2163 # the argument is NAME=VALUE
        export -- "$1"
    fi
}

# log MESSAGE: one line in the job's log, whose disk may be full. Sets last_note.
log() {
    last_note=$*
    echo "$script_name: $*" >&2 || :
}

# error SLUG MESSAGE: the same; docs/errors.md says what the slug stands for.
error() {
    log "error[$1]: ${*:2}"
}

# warn SLUG MESSAGE: likewise, of something after which the job goes on.
warn() {
    log "warning[$1]: ${*:2}"
}

# die SLUG MESSAGE: an error, and the end of the job, with the exit code of the slug.
die() {
    error "$@"
    exit "${ERROR_CODE[$1]}"
}

# query_scheduler COMMAND...: run a command that only asks something, for SLIPWAY_PROBE_SECONDS;
# and, if it has not ended by then, once more, for three times that. Returns 124 if that is over,
# too.
query_scheduler() {
    local code=0
    timeout --kill-after=5 "$SLIPWAY_PROBE_SECONDS" "$@" || code=$?
    [[ $code == 124 || $code == 137 ]] || return "$code"
    timeout --kill-after=5 "$(retry_limit)" "$@"
}

# export_to_ranks NAME=VALUE...: export them to the ranks, and record them in SLIPWAY_EXPORTED, by
# which a job that is submitted from inside this one knows that they are not its own.
export_to_ranks() {
    # shellcheck disable=SC2163 # the arguments are NAME=VALUE
    export -- "$@"
    printf -v SLIPWAY_EXPORTED '%s\n' "${SLIPWAY_EXPORTED:-}" "$@"
    export SLIPWAY_EXPORTED
}

# Unset what a job exported from whose inside this one was submitted, unless it has been set anew
# since; and what a launcher says of one of its ranks.
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

# check_settings: check every setting by its pattern, and make paths absolute. Sets run_mark, by
# which steps and launches of this run are told from those of another one in the same job. Fails on
# an invalid value. Nothing has been written yet.
check_settings() {
    local name
    catch_early_sigterm
    [ -z "$lib" ] || refuse_shared_above "$lib" # else it is inside this script
    unset_parent_job_variables
    [ ${#taken_names[@]} -eq 0 ] ||
        warn taken-name \
            "set, but a name of this script's own, so nothing that it starts sees it:" \
            "$(join_by ', ' "${taken_names[@]}")"
    for name in "${!SLIPWAY_@}"; do
        [ -v "SETTING_EXPECTED[$name]" ] || [[ " ${OTHER_VARIABLES[*]} " == *" $name "* ]] ||
            warn unknown-setting \
                "$name is set, but is no setting: see docs/contract.md for their names"
    done
    for name in "${SETTINGS[@]}"; do
        check_setting "$name"
    done
    log_missing_environment
    [ -z "${SLIPWAY_ARGS:-}" ] || declare -F read_arguments >/dev/null ||
        die misplaced-arguments \
            "SLIPWAY_ARGS is not read here: put the arguments behind the name of this script"
    # A job that is submitted from inside this one has its own run folder and arguments.
    export -n SLIPWAY_RUN_DIR SLIPWAY_ARGS
    [ -d "$submit_folder" ] || [ -n "${kept_folder:-}" ] ||
        die cannot-read "no $submit_folder on $HOSTNAME: is its disk mounted there?"
    for name in "${PATH_SETTINGS[@]}"; do
        make_absolute "$name"
        check_setting "$name" # the folder of submission, too
    done
    if [ -n "${run_dir:-}" ]; then
        run_dir=$(realpath --canonicalize-missing -- "$run_dir")
        run_mark=$(sha256sum <<<"$run_dir")
        run_mark=${run_mark:0:16}
    fi
    check_notify
    # A run that is continued works in the folder where it was begun, if that is still there.
    [ ! -d "${kept_folder:-}" ] || cd -- "$kept_folder" ||
        die cannot-read "cannot enter $kept_folder"
}

# log_settings: those that the environment has set, or `jobgen submit`, or an earlier attempt.
log_settings() {
    local name words=()
    for name in "${SETTINGS[@]}"; do
        [ -z "${!name:-}" ] || ! is_exported "$name" || words+=("$name=${!name@Q}")
    done
    [ ${#words[@]} -eq 0 ] || log "set at submission: ${words[*]}"
}

# log_missing_environment: the scheduler's own file says where a job does not get that of its
# submission.
log_missing_environment() {
    :
}

# check_backend NAME...: those that this script can launch. Fails if BACKEND is another one.
check_backend() {
    [[ " $* " != *" $BACKEND "* ]] || return 0
    die wrong-backend "BACKEND=$BACKEND: this script launches $(join_by ' or ' "$@");" \
        "\`jobgen render ${BACKEND/#horovod/horovod-gloo} --site SITE\` writes one for that"
}

# check_setting NAME: fails if the value is not what the setting may be.
check_setting() {
    local LC_ALL=C # bytes of file names need not be valid in the user's encoding
    local pattern=${SETTING_PATTERN[$1]:-}
    [ -n "$pattern" ] && [ -n "${!1+set}" ] || return 0
    [[ ${!1} =~ $pattern ]] || die bad-value "$1 is ${!1@Q}: it must be ${SETTING_EXPECTED[$1]}"
}

# make_absolute NAME: paths in settings are relative to the folder of submission.
make_absolute() {
    [ -n "${!1:-}" ] || return 0
    case $1=${!1} in # no paths
        SLIPWAY_VENV=local | SLIPWAY_VENV=modules | SLIPWAY_VENV=conda:*) return ;;
        SLIPWAY_IMAGE=*://* | SLIPWAY_IMAGE=*-archive:* | SLIPWAY_IMAGE=localhost/*) return ;;
    esac
    local links=()
    [ "$1" != SLIPWAY_VENV ] || links=(--no-symlinks) # venv_build.job makes that link
    printf -v "$1" %s "$(realpath --canonicalize-missing "${links[@]}" -- "${!1}")"
}

# require SLUG KIND NAME [REMEDY]: fails with SLUG if the setting NAME names nothing that can be
# read, or not a KIND: file, folder, or `file or folder`. A FIFO would be waited for.
require() {
    local slug=$1 kind=$2
    shift 2
    [ -r "${!1}" ] ||
        die "$slug" "$1: ${!1} is missing or cannot be read; ${2:-see the settings in this script}"
    [[ $kind == *file* && -f ${!1} ]] || [[ $kind == *folder* && -d ${!1} ]] ||
        die "$slug" "$1: ${!1} is not a $kind"
}

# join_by SEPARATOR WORD...: the words on one line.
join_by() {
    local separator=$1 joined
    shift
    printf -v joined "%s$separator" "$@"
    echo "${joined%"$separator"}"
}

# The library's version, and a checksum over all of its files, for the log.
library_identity() {
    local sum
    sum=$(cat -- "$lib"/*.* | sha256sum)
    echo "library $LIBRARY_VERSION (sha256 ${sum:0:12})"
}

# load_modules PURGE NAME...: environment modules. PURGE is 1 where the modules of the submission's
# shell are to go first. Fails if the scheduler's own commands are gone afterwards: there Slurm is a
# module too.
load_modules() {
    local command
    type module >/dev/null 2>&1 ||
        die no-modules "no \`module\` on $HOSTNAME, and the site's file names modules"
    set +u # `module` reads unset variables
    if [ "$1" = 1 ]; then
        module purge
        unset -v PYTHONPATH # of the submission's shell; the modules set theirs
    fi
    shift
    module load "$@" || die no-modules "the modules $* cannot be loaded on $HOSTNAME"
    set -u
    for command in "${SCHEDULER_COMMANDS[@]}"; do
        type -P "$command" >/dev/null ||
            die no-modules \
                "no $command after \`module purge\`: set purge_modules = false in the site's file"
    done
}
