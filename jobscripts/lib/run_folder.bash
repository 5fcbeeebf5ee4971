# shellcheck shell=bash
# The run folder: its attempts, the check that no other job uses it, and the copies of script,
# library and configuration with which the run can be continued even if the clone changes.

readonly LIBRARY_MARK=.slipway-library # file that marks the copy in a run folder
cluster='' # this job's cluster; empty if the scheduler has only one

# open_run_folder [MODE]: make the run folder with this mode (700), and in it logs/N for this
# attempt. Sets RUN_DIR, attempt, log_dir, and a umask that lets no other user write new files. With
# mode 750 exports TRAINER_UMASK, for ranks on other nodes. Fails if the folder cannot be written or
# belongs to another user, if others can write files from which code is run, or if several nodes
# would each train in it.
open_run_folder() {
    local mode=${1:-700}
    [ "$BACKEND" != single ] || ((nnodes == 1)) ||
        die too-many-nodes \
            "this script trains in one process, but the job has $nnodes nodes: request one, or" \
            "use a script for several nodes, written by \`jobgen render ddp --site SITE\`"
    RUN_DIR=$(realpath --canonicalize-missing -- "$run_dir")
    umask go-w
    (
        [ "$mode" != 750 ] || umask g=rx
        mkdir --parents -- "$(dirname -- "$RUN_DIR")"
    ) || die cannot-write "cannot write $RUN_DIR: set SLIPWAY_OUTPUT to a writable folder"
    if [ "$mode" = 750 ]; then # the site allows the group to read the folder, not to write
        umask 027
        export_to_ranks TRAINER_UMASK=027
    fi
    [ -d "$RUN_DIR" ] || mkdir --mode="$mode" -- "$RUN_DIR" || [ -d "$RUN_DIR" ] ||
        die cannot-write \
            "cannot write $RUN_DIR: set SLIPWAY_OUTPUT to a folder on a disk that all nodes share"
    [ -O "$RUN_DIR" ] && [ -w "$RUN_DIR" ] ||
        die not-your-folder \
            "$RUN_DIR belongs to another user or is not writable: set SLIPWAY_RUN_DIR"
    require_private_folder
    if [ -e "$RUN_DIR/job.sh" ] && ! [ "$script_file" -ef "$RUN_DIR/job.sh" ]; then
        die folder-holds-run \
            "$RUN_DIR contains a run, and this script is not its job.sh: to continue it, submit" \
            "$RUN_DIR/job.sh; to begin another run," \
            "set SLIPWAY_OUTPUT to another folder"
    fi
    refuse_foreign_folder
    mkdir --parents -- "$RUN_DIR/logs" ||
        die cannot-write "cannot write $RUN_DIR/logs: is the disk full?"
    attempt=$(($(last_attempt) + 1))
    [ "$attempt" != 1 ] || [ -z "${restarted:-}" ] || [ -n "${interactive:-}" ] ||
        warn run-folder-moved \
            "this job was started before, but $RUN_DIR contains no attempt: training begins at" \
            "step 0. If the folder was moved, cancel the job and submit the job.sh in it"
    refuse_concurrent_run
    begin_attempt "$attempt"
    # Check again: an attempt that began at the same time has recorded itself by now. The attempt
    # with the higher number fails.
    refuse_concurrent_run
    trap clean_up_job EXIT
    catch_signals
    log_guard_kill $((attempt - 1))
    save_library
    start_guard
    log "attempt $attempt in $RUN_DIR, $(library_identity)"
    log_settings
}

# require_private_folder: fail if others can write or replace the run folder or what is run from it.
# An empty folder that others can write, as made under umask 002, is closed by chmod instead.
require_private_folder() {
    local path mode parts=("$RUN_DIR")
    ! is_trusted "$RUN_DIR" || return 0
    mode=$(stat --format=%A -- "$RUN_DIR")
    if [[ $mode == ?????w* || $mode == ????????w* ]] &&
        [ -z "$(ls --almost-all -- "$RUN_DIR")" ]; then
        chmod go-w -- "$RUN_DIR"
        log "others could write $RUN_DIR, which was empty: changed its mode by chmod go-w"
    fi
    for path in "$RUN_DIR"/{job.sh,input.toml,lib,lib/*}; do
        [ ! -e "$path" ] || parts+=("$path")
    done
    refuse_shared "$EUID" "${parts[@]}"
    refuse_shared_above "$RUN_DIR"
    refuse_shared_files
}

# refuse_shared_files: fail if others can write the log folders or new files in RUN_DIR. An ACL that
# new files inherit can allow that whatever the umask is. `ls` does not show such an ACL, so this
# function checks the mode of a new file. Skips the check if no other user can enter RUN_DIR.
refuse_shared_files() {
    local new=$RUN_DIR/.new.$HOSTNAME.$$ shared='' path logs=()
    [[ $(stat --format=%A -- "$RUN_DIR") != ??????[-S]??[-T] ]] || return 0
    for path in "$RUN_DIR"/{logs,logs/*}; do
        [ ! -d "$path" ] || logs+=("$path")
    done
    [ ${#logs[@]} = 0 ] || refuse_shared "$EUID" "${logs[@]}"
    : >"$new" || die cannot-write "cannot write $RUN_DIR: is the disk full?"
    (refuse_shared "$EUID" "$new") 2>/dev/null || shared=1
    rm -f -- "$new"
    [ -z "$shared" ] ||
        die writable-by-others \
            "others could write new files in $RUN_DIR, because of an ACL that they inherit:" \
            "chmod 700 ${RUN_DIR@Q}, or setfacl --remove-default there, or set SLIPWAY_OUTPUT to" \
            "another folder"
}

# refuse_shared_above PATH: fail if others can replace a folder on the way to PATH. That is the case
# if everybody can write a folder above it that has no sticky bit and that others can enter. Warns
# once if the group can write such a folder of the user's: in a project folder the group is the
# user's team. A group-writable folder of another user is accepted: only its owner can change that,
# and what a member puts there does not belong to this user.
refuse_shared_above() {
    local above folder mode group open='' shared=''
    ! is_trusted "$1" || return 0
    above=$(realpath --canonicalize-missing -- "$1")
    while [ -n "$above" ]; do
        above=${above%/*}
        folder=${above:-/}
        read -r mode _ _ group _ <<<"$(ls --directory --numeric-uid-gid -- "$folder")"
        if [ -O "$folder" ] && [[ $mode == ??????[-S]??[-T]* ]]; then
            open='' shared='' # others cannot enter this folder
        elif [[ $mode == ?????????[tT]* ]]; then
            continue
        elif [[ $mode == ????????w* ]]; then
            open=$folder
        elif [ -O "$folder" ] && [[ $mode == ?????w* ]]; then
            [[ $mode != *+ ]] && is_private "$group" "$EUID" || shared=$folder
        fi
    done
    [ -z "$open" ] ||
        die writable-by-others \
            "others can write $open and so replace $1, from which code is run: chmod o-w" \
            "${open@Q}, or, on a disk with one mode for all files, set SLIPWAY_TRUSTED_FOLDER"
    [ -z "$shared" ] || [ "$shared" = "${shared_above:-}" ] ||
        warn writable-by-others \
            "the group of $shared can replace its files, such as $1, from which code is run:" \
            "chmod g-w ${shared@Q} unless you trust all members"
    shared_above=$shared
}

# change_mode MODE PATH...: run chmod recursively. Fails if chmod does, unless the first PATH is in
# SLIPWAY_TRUSTED_FOLDER, where modes are not checked.
change_mode() {
    chmod --recursive "$1" -- "${@:2}" || is_trusted "$2"
}

# begin_attempt NUMBER: make the attempt's folder, with this number or the next free one. It
# contains `job`, the job and its cluster, and `process`, this script's process; both exist as soon
# as the folder does. Sets attempt and log_dir.
begin_attempt() {
    local new=$RUN_DIR/logs/.new.$HOSTNAME.$$
    attempt=$1
    mkdir --parents -- "$new" &&
        { echo "$scheduler $job_id${cluster:+ $cluster}" >"$new/job"; } 2>/dev/null &&
        { echo "$HOSTNAME $(process_of $$)" >"$new/process"; } 2>/dev/null ||
            die cannot-write "cannot write $RUN_DIR/logs: is the disk full?"
    # Another job may begin in the same folder at the same time: each gets its own number.
    while [ -e "$RUN_DIR/logs/$attempt" ] ||
        ! mv --no-target-directory -- "$new" "$RUN_DIR/logs/$attempt" 2>/dev/null; do
        [ -e "$RUN_DIR/logs/$attempt" ] ||
            die cannot-write "cannot write $RUN_DIR/logs: is the disk full?"
        attempt=$((attempt + 1))
    done
    log_dir=$RUN_DIR/logs/$attempt
}

# process_of PID: print the process number and its start time, in clock ticks since the machine
# started. Prints nothing if there is no such process or it is a zombie.
process_of() {
    local line='' fields
    { read -r -d '' line <"/proc/$1/stat"; } 2>/dev/null || :
    read -r -a fields <<<"${line##*) }" # after the name, which may contain blanks
    [[ ${fields[0]:-Z} == [ZX] ]] || echo "$1 ${fields[19]}"
}

# log_guard_kill NUMBER: warn if guard.sh ended that attempt. Its log is separate from the job's
# log.
log_guard_kill() {
    local log=$RUN_DIR/logs/$1/guard.log
    [ ! -s "$log" ] || warn node-lost "$(head --lines=1 -- "$log")"
}

# refuse_foreign_folder: fail if RUN_DIR contains files that do not come from a run, as they could
# be overwritten. In the folder of a run, fail only if a file that this job replaces does not come
# from a run.
refuse_foreign_folder() {
    local other
    [ ! -e "$RUN_DIR/job.sh" ] || return 0
    for other in "$RUN_DIR"/*; do
        [ -e "$other" ] && [ "$other" != "$RUN_DIR/logs" ] || continue
        ! is_run_folder || is_foreign_file "$other" || continue
        die folder-holds-other-files \
            "$RUN_DIR contains ${other##*/}, which no run has written: set SLIPWAY_RUN_DIR to a" \
            "new folder"
    done
}

# is_foreign_file PATH: return 0 if PATH has the name of a file that this job writes, but no attempt
# has written it.
is_foreign_file() {
    case ${1##*/} in
        lib) ! is_saved_library "$1" ;;
        input.toml) [ -z "${SLIPWAY_SCRIPT:-}" ] && ! cmp --quiet -- "$1" "${SLIPWAY_CONFIG:-}" ;;
        *) return 1 ;;
    esac
}

# is_run_folder: return 0 if RUN_DIR contains files that a job, or a trainer started without one,
# writes. Checks their content, because a user's file may have the same name.
is_run_folder() {
    local file
    first_line_has "$RUN_DIR/run.json" '"started": .*"world_size": ' && return
    first_line_has "$RUN_DIR/lock" '"pid_namespace": ' && return
    for file in "$RUN_DIR"/logs/*/job; do
        ! first_line_has "$file" '^[a-z]+ [^ ]+( [^ ]+)?$' || return 0
    done
    return 1
}

# first_line_has FILE PATTERN: return 0 if FILE is a file and its first line matches PATTERN.
first_line_has() {
    local line=''
    [ -f "$1" ] || return
    read -r line 2>/dev/null <"$1" || :
    [[ $line =~ $2 ]]
}

# is_saved_library FOLDER: return 0 if save_library has made the folder.
is_saved_library() {
    [ ! -L "$1" ] && [ -f "$1/$LIBRARY_MARK" ]
}

# refuse_concurrent_run: fail if the job or process of an earlier attempt still runs, because two
# trainings would write to one folder. Waits up to 2 minutes for the end of a job that has trained
# (the next rung of a sweep may begin while it cleans up) or that this one continues (PBS does not
# let a job depend on an array task). Also fails if it is impossible to find out. If the scheduler
# does not answer, warns and relies on the trainer's lock.
refuse_concurrent_run() {
    local folder number code runs words limit numbers=() seen=$'\n' silent='' unknown=()
    local its_scheduler its_job its_cluster its_host its_process
    for folder in "$RUN_DIR"/logs/*/; do
        number=${folder%/}
        number=${number##*/}
        [[ $number =~ ^[1-9][0-9]{0,8}$ ]] && ((number < attempt)) || continue
        numbers[number]=$number # sorted by number
    done
    # The newest attempt first: of all attempts of one script, it shows whether the script has
    # trained.
    while ((${#numbers[@]} > 0)); do
        number=${numbers[-1]}
        unset -v 'numbers[-1]'
        read_attempt_owner "$number"
        words="$its_scheduler $its_job $its_cluster $its_host $its_process"
        [[ $seen != *$'\n'"$words"$'\n'* ]] || continue
        seen+=$words$'\n'
        limit=0
        if [ -e "$RUN_DIR/verdict.$number" ] || [ -e "$RUN_DIR/logs/$number/code" ] ||
            [ "$(count_requeues)" != 0 ]; then
            limit=$((SECONDS + 120))
        fi
        runs=''
        while true; do
            code=0
            attempt_has_ended "$number" || code=$?
            # Unknown now, but it ran when the scheduler last answered: it counts as running.
            [[ $code$runs != [23]1 ]] || code=1 silent=''
            [ "$code" = 1 ] || break
            runs=1
            ((SECONDS < limit)) || refuse_running_attempt "$number"
            sleep 2
        done
        [ "$code" != 2 ] || unknown+=("$its_job")
        [ "$code" != 3 ] || refuse_unverifiable_attempt "$number"
    done
    [ ${#unknown[@]} = 0 ] || [ -n "${log_dir:-}" ] || # log_dir is set: the warning was logged
        warn folder-in-use \
            "the scheduler does not answer: job $(join_by ', ' "${unknown[@]}") may still run in" \
            "$RUN_DIR. If it does, stop one of the two jobs"
}

# refuse_unverifiable_attempt NUMBER: fail because that attempt may still run on a machine or
# cluster that this job cannot query.
refuse_unverifiable_attempt() {
    read_attempt_owner "$1"
    [ -z "${log_dir:-}" ] || rm -rf -- "${log_dir:?}"
    die folder-in-use \
        "job $its_job${its_cluster:+ of $its_cluster} began attempt $1 in $RUN_DIR on" \
        "${its_host:-a node} and may still run: it has recorded no end, and this job cannot query" \
        "it. Stop it; or, if it has ended: echo ended >>${RUN_DIR@Q}/logs/$1/process"
}

# refuse_running_attempt NUMBER: fail because that attempt still runs. Removes this attempt's
# folder, which frees its number.
refuse_running_attempt() {
    local left
    read_attempt_owner "$1"
    left=$(processes_left "$1" | xargs)
    [ -z "${log_dir:-}" ] || rm -rf -- "${log_dir:?}"
    die folder-in-use \
        "job $its_job runs in $RUN_DIR: wait for its end, or stop it" \
        ${left:+"(its processes on $HOSTNAME: $left)"}
}

# read_attempt_owner NUMBER: read which job and process began that attempt, as begin_attempt has
# recorded it. Sets its_scheduler, its_job, its_cluster, its_host and its_process; each is empty if
# not recorded.
read_attempt_owner() {
    its_scheduler='' its_job='' its_cluster='' its_host='' its_process=''
    read -r its_scheduler its_job its_cluster 2>/dev/null <"$RUN_DIR/logs/$1/job" || :
    read -r its_host its_process 2>/dev/null <"$RUN_DIR/logs/$1/process" || :
}

# is_own_job: return 0 if read_attempt_owner has found this same job.
is_own_job() {
    [ "$its_job" = "$job_id" ] && ! is_foreign_job
}

# is_foreign_job: return 0 if read_attempt_owner has found a job of another scheduler or cluster.
is_foreign_job() {
    [ "$its_scheduler" != "$scheduler" ] ||
        { [ -n "$its_cluster" ] && [ -n "$cluster" ] && [ "$its_cluster" != "$cluster" ]; }
}

# foreign_job_has_ended JOB CLUSTER: return 0 if a job on another cluster of this scheduler has
# ended, 1 if it runs, 2 if unknown. Returns 2 by default. (slurm.bash overrides this default.)
foreign_job_has_ended() {
    return 2
}

# attempt_has_ended NUMBER: return 0 if the script of that attempt has ended or is this very script.
# Returns 1 if it runs; 2 if the scheduler does not answer (sets `silent`, and does not query it
# again); 3 if it ran on a machine or cluster that cannot be queried.
#
# For another job, the scheduler decides, and if it does not answer, the end that the job has
# recorded. For this same job, an earlier start is over if the scheduler has requeued the job. In an
# interactive allocation, a user may start several scripts, which their processes distinguish.
attempt_has_ended() {
    local its_scheduler its_job its_cluster its_host its_process code=0
    read_attempt_owner "$1"
    [ -n "$its_job" ] || return 0
    if is_foreign_job; then
        ! has_recorded_end "$1" || return 0
        [ "$its_scheduler" = "$scheduler" ] || return 3
        foreign_job_has_ended "$its_job" "$its_cluster" || code=$?
        return $((code == 2 ? 3 : code))
    elif [ "$its_job" != "$job_id" ] &&
        { [ -z "$its_process" ] || [ ${#SCHEDULER_COMMANDS[@]} != 0 ]; }; then
        [ -n "${silent:-}" ] || job_has_ended "$its_job" || code=$?
        [ "$code" != 2 ] || silent=1
        [ -n "${silent:-}" ] || return "$code"
        has_recorded_end "$1" || return 2
    elif [ -z "$its_process" ]; then
        return 0
    elif [ "$its_host" = "$HOSTNAME" ]; then
        [ "$its_process" = "$(process_of $$)" ] ||
            { [ "$its_process" != "$(process_of "${its_process% *}")" ] &&
                [ -z "$(processes_left "$1")" ]; }
    else
        scheduler_ends_job || has_recorded_end "$1" || return 3
    fi
}

# has_recorded_end NUMBER: return 0 if that attempt's end is recorded: by its script
# (record_script_end), by a user, or by a verdict of its ranks after which they are not restarted
# (attempt_has_died).
has_recorded_end() {
    local state='' step='' reason='' code=''
    ! grep --quiet --no-messages '^ended' "$RUN_DIR/logs/$1/process" || return 0
    read -r state step reason 2>/dev/null <"$RUN_DIR/verdict.$1" || :
    read -r code 2>/dev/null <"$RUN_DIR/logs/$1/code" || :
    case "$state $reason" in
        "stopped launcher") return 1 ;;
        "stopped signal") ! launch_crashed ;;
        done\ * | stopped\ * | out-of-time\ * | failed\ *) ;;
        *) return 1 ;;
    esac
}

# record_script_end CODE: record that this script has ended with CODE, for has_recorded_end.
record_script_end() {
    [ -f "${log_dir:-}/process" ] || return 0
    echo "ended $1" 2>/dev/null >>"$log_dir/process"
}

# scheduler_ends_job: return 0 if the scheduler ends all processes of this job before it starts the
# job again.
scheduler_ends_job() {
    [ ${#SCHEDULER_COMMANDS[@]} != 0 ] && [ -z "${interactive:-}" ]
}

# processes_left NUMBER: print the processes on this node of a launch of that attempt that has no
# exit code yet, although its script may have been killed. Reads what read_attempt_owner sets.
# Prints nothing if the scheduler ends a job's processes: terminate_earlier_ranks handles this job's
# own.
processes_left() {
    [ ! -e "$RUN_DIR/logs/$1/code" ] && [ -n "$its_process" ] && [ "$its_host" = "$HOSTNAME" ] &&
        ! scheduler_ends_job || return 0
    sh "$lib/find_ranks.sh" "$its_job.*.${its_process% *}.*" || :
}

# last_attempt: print the number of the last attempt that has a folder or a verdict, or 0.
last_attempt() {
    local left number last=0
    for left in "$RUN_DIR"/logs/*/ "$RUN_DIR"/verdict.*; do
        number=${left%/}
        number=${number##*[/.]}
        [[ $number =~ ^[1-9][0-9]{0,8}$ ]] || continue
        ((number <= last)) || last=$number
    done
    echo "$last"
}

# save_library: copy the library to RUN_DIR/lib, where later attempts and all nodes find it. A mark
# file in the copy shows that it may be replaced. Sets lib.
save_library() {
    local temporary=$RUN_DIR/.lib.$attempt
    if [ ! -e "$RUN_DIR/job.sh" ]; then # no earlier attempt has got as far as save_job_script
        # Make __pycache__ here: Python would make it with the umask of a remote shell.
        copy_library "$temporary" && mkdir -- "$temporary/__pycache__" &&
            : >"$temporary/$LIBRARY_MARK" && change_mode go-w "$temporary" ||
                die cannot-write "cannot write $RUN_DIR/lib: is the disk full?"
        # Keep an identical copy: another job that begins in this folder may be using it.
        if is_saved_library "$RUN_DIR/lib" &&
            ! diff --recursive --brief -- "$temporary" "$RUN_DIR/lib" >/dev/null 2>&1; then
            rm -rf -- "${RUN_DIR:?}/lib" 2>/dev/null || :
        fi
        # Two jobs in one folder may both get here: the second one uses the copy of the first.
        mv --no-target-directory -- "$temporary" "$RUN_DIR/lib" 2>/dev/null ||
            rm -rf -- "$temporary"
        is_saved_library "$RUN_DIR/lib" && [ -r "$RUN_DIR/lib/free_port.py" ] ||
            die cannot-write "cannot write $RUN_DIR/lib: is the disk full?"
    fi
    lib=$RUN_DIR/lib
}

# copy_library FOLDER: copy the library to a new folder. A script made by `jobgen render
# --standalone` defines its own function, as it contains the library.
copy_library() {
    mkdir -- "$1" &&
        cp --recursive --no-preserve=mode -- "$lib/." "$1" &&
        rm -rf -- "$1/__pycache__" # Python may have made one in the clone
}

# save_job_script ARGUMENT...: write RUN_DIR/job.sh: this script with its settings and arguments,
# but with nothing that depends on the allocation. `sbatch RUN_DIR/job.sh` continues the run. The
# configuration is copied to RUN_DIR/input.toml.
save_job_script() {
    local kept=$RUN_DIR/.job.sh.$attempt
    if [ -z "${SLIPWAY_SCRIPT:-}" ] && [ -n "${SLIPWAY_CONFIG:-}" ] &&
        ! [ "$SLIPWAY_CONFIG" -ef "$RUN_DIR/input.toml" ]; then
        cp --no-preserve=mode -- "$SLIPWAY_CONFIG" "$kept.toml" &&
            change_mode go-w "$kept.toml" &&
            mv --force -- "$kept.toml" "$RUN_DIR/input.toml" ||
                die cannot-write "cannot write $RUN_DIR/input.toml: is the disk full?"
        SLIPWAY_CONFIG=$RUN_DIR/input.toml
    fi
    saved_lines "$@" >"$kept.settings" ||
        die cannot-write "cannot write $RUN_DIR/job.sh: is the disk full?"
    sed --expression='/^# Kept settings (/,/^# Kept settings end\.$/d' \
        --expression="/^readonly job_id\$/r $kept.settings" \
        -- "$script_file" >"$kept" ||
            die cannot-write "cannot write $RUN_DIR/job.sh: is the disk full?"
    rm -- "$kept.settings"
    change_mode u+x,go-w "$kept"
    mv --force -- "$kept" "$RUN_DIR/job.sh"
}

# saved_lines ARGUMENT...: print the lines that job.sh has in addition to the script.
# shellcheck disable=SC2016 # the lines are for the shell that runs job.sh
saved_lines() {
    local name
    echo "# Kept settings (of job $job_id): settings in the environment win, except in that job."
    printf 'kept_run_dir=%q\n' "$RUN_DIR"
    cat <<'END'
if [ -O "$kept_run_dir/job.sh" ]; then
    command=$(sed --quiet 's/^ *Command=//p' <<<"${slurm_record:-}") # $0 is Slurm's copy
    for path in "$0" "${command%"${*:+ $*}"}" ${SLIPWAY_RUN_DIR:+"$SLIPWAY_RUN_DIR/job.sh"}; do
        [ "${path##*/}" = job.sh ] && [ -e "$path" ] || continue
        [ "$path" -ef "$kept_run_dir/job.sh" ] && continue
        echo "$script_name: error[run-folder-moved]: this script continues the run in" \
            "$kept_run_dir, but $path is another job.sh: submit $kept_run_dir/job.sh, or move" \
            "that folder away first" >&2 || :
        exit 78
    done
    if [ "$scheduler${slurm_record:-}${SLIPWAY_RUN_DIR:-}${restarted:-}" = slurm ] &&
        [ "${0##*/}" != job.sh ]; then
        echo "$script_name: error[scheduler-silent]: Slurm does not report which job.sh this is;" \
            "to continue $kept_run_dir, submit it with SLIPWAY_RUN_DIR=${kept_run_dir@Q}" >&2 || :
        exit 78
    fi
    SLIPWAY_RUN_DIR=$kept_run_dir # ignores the environment: this script continues this run
elif [ -z "${SLIPWAY_RUN_DIR:-}" ] || ! [ -O "$SLIPWAY_RUN_DIR/job.sh" ]; then
    echo "$script_name: error[run-folder-moved]: $kept_run_dir contains no job.sh: set" \
        "SLIPWAY_RUN_DIR to the run folder's new path" >&2 || :
    exit 78
fi
END
    declare -f refuse_shared is_private is_trusted # the library's functions, not the script's
    [ -z "${SLIPWAY_TRUSTED_FOLDER:-}" ] ||
        printf '[ -n "${SLIPWAY_TRUSTED_FOLDER:-}" ] || SLIPWAY_TRUSTED_FOLDER=%q\n' \
            "$SLIPWAY_TRUSTED_FOLDER"
    cat <<'END'
refuse_shared "$EUID" "$SLIPWAY_RUN_DIR" "$SLIPWAY_RUN_DIR"/{job.sh,lib,lib/*}
SLIPWAY_LIB=$SLIPWAY_RUN_DIR/lib
END
    printf 'kept_folder=%q\n' "$PWD"
    printf 'kept_job=%q\n' "$job_id"
    cat <<'END'
restore_setting() { # NAME VALUE
    [ "$job_id" != "$kept_job" ] || unset -v "$1"
    [ -n "${!1:-}" ] || printf -v "$1" %s "$2"
    kept_settings+=("$1")
}
END
    while IFS= read -r name; do
        if [ "${!name}" = "$RUN_DIR/input.toml" ]; then # stays valid if the folder is moved
            printf 'restore_setting %s "$SLIPWAY_RUN_DIR/input.toml"\n' "$name"
        else
            printf 'restore_setting %s %q\n' "$name" "${!name}"
        fi
    done < <(settings_to_save)
    [ $# -eq 0 ] || printf '[ $# -gt 0 ] || [ -n "${SLIPWAY_ARGS:-}" ] || set -- %s\n' "${*@Q}"
    echo '# Kept settings end.'
}

# settings_to_save: print the names of the settings that a user has set, now (they are exported) or
# for an earlier attempt, and of the settings whose defaults depend on the submission folder.
settings_to_save() {
    local name
    for name in "${SETTINGS[@]}"; do
        case $name in
            SLIPWAY_RUN_DIR | SLIPWAY_LIB | SLIPWAY_OUTPUT | SLIPWAY_TRUSTED_FOLDER) continue ;;
            SLIPWAY_IMAGE | SLIPWAY_VENV | SLIPWAY_CONFIG) echo "$name" && continue ;;
        esac
        if is_exported "$name" || [[ " ${kept_settings[*]-} " == *" $name "* ]]; then
            echo "$name"
        fi
    done
}

# is_exported NAME: return 0 if the environment has set the variable; scripts do not export their
# defaults.
is_exported() {
    [[ $(declare -p "$1" 2>/dev/null) =~ ^declare\ -[A-Za-z]*x ]]
}
