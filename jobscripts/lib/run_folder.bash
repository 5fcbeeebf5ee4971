# shellcheck shell=bash
# The run folder: attempts, and what is kept there so that the run can be continued whatever happens
# to the clone.

readonly LIBRARY_MARK=.slipway-library # of the copy in a run folder
cluster='' # of this job; empty where the scheduler has one only

# open_run_folder [MODE]: make the run folder with this mode (700), and in it logs/N for this
# attempt. Sets RUN_DIR, attempt, log_dir and the umask, by which nobody else may write what is
# made; with mode 750 exports TRAINER_UMASK, for ranks on other nodes. Fails if the folder cannot be
# written or belongs to somebody else, if others can write what is run from it, or if several nodes
# would each train in it.
open_run_folder() {
    local mode=${1:-700}
    [ "$BACKEND" != single ] || ((nnodes == 1)) ||
        die too-many-nodes \
            "this script trains in one process, and the job has $nnodes nodes: ask for one;" \
            "\`jobgen render ddp --site SITE\` writes a script for several"
    RUN_DIR=$(realpath --canonicalize-missing -- "$run_dir")
    umask go-w
    (
        [ "$mode" != 750 ] || umask g=rx
        mkdir --parents -- "$(dirname -- "$RUN_DIR")"
    ) || die cannot-write "cannot write $RUN_DIR: set SLIPWAY_OUTPUT"
    if [ "$mode" = 750 ]; then # the site lets the group read it, and write nothing
        umask 027
        export_to_ranks TRAINER_UMASK=027
    fi
    [ -d "$RUN_DIR" ] || mkdir --mode="$mode" -- "$RUN_DIR" || [ -d "$RUN_DIR" ] ||
        die cannot-write \
            "cannot write $RUN_DIR: set SLIPWAY_OUTPUT to a folder on a disk that all nodes share"
    [ -O "$RUN_DIR" ] && [ -w "$RUN_DIR" ] ||
        die not-your-folder "$RUN_DIR is not yours to write: set SLIPWAY_RUN_DIR"
    require_private_folder
    if [ -e "$RUN_DIR/job.sh" ] && ! [ "$script_file" -ef "$RUN_DIR/job.sh" ]; then
        die folder-holds-run \
            "$RUN_DIR holds a run, and nothing says that this job began it: submit" \
            "$RUN_DIR/job.sh to continue it," \
            "or set SLIPWAY_OUTPUT to another folder"
    fi
    refuse_foreign_folder
    mkdir --parents -- "$RUN_DIR/logs" ||
        die cannot-write "cannot write $RUN_DIR/logs: is the disk full?"
    attempt=$(($(last_attempt) + 1))
    [ "$attempt" != 1 ] || [ -z "${restarted:-}" ] || [ -n "${interactive:-}" ] ||
        warn run-folder-moved \
            "this job was started before, and no attempt of a run is in $RUN_DIR: this one begins" \
            "at step 0. If the folder was moved, cancel the job, and submit the job.sh in it"
    refuse_concurrent_run
    begin_attempt "$attempt"
    # An attempt that began at the same time has recorded that by now; the later number ends.
    refuse_concurrent_run
    trap clean_up_job EXIT
    catch_signals
    log_guard_kill $((attempt - 1))
    save_library
    start_guard
    log "attempt $attempt in $RUN_DIR, $(library_identity)"
    log_settings
}

# require_private_folder: fails if others could have changed what is run from RUN_DIR, or can
# exchange it, or could write what is made there. Where it is still empty, as made by hand under
# umask 002, it is closed to them.
require_private_folder() {
    local path mode parts=("$RUN_DIR")
    ! is_trusted "$RUN_DIR" || return 0
    mode=$(stat --format=%A -- "$RUN_DIR")
    if [[ $mode == ?????w* || $mode == ????????w* ]] &&
        [ -z "$(ls --almost-all -- "$RUN_DIR")" ]; then
        chmod go-w -- "$RUN_DIR"
        log "others could write $RUN_DIR, and nothing was in it: chmod go-w"
    fi
    for path in "$RUN_DIR"/{job.sh,input.toml,lib,lib/*}; do
        [ ! -e "$path" ] || parts+=("$path")
    done
    refuse_shared "$EUID" "${parts[@]}"
    refuse_shared_above "$RUN_DIR"
    refuse_shared_files
}

# refuse_shared_files: fails if others can write what has been written in RUN_DIR, or will be: an
# ACL that new files inherit makes them so, whatever the umask. Where nobody else can enter RUN_DIR,
# that is all the same. What shows it is the mode of a new file, as `ls` shows no such ACL.
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
            "others could write what is made in $RUN_DIR, by an ACL that new files inherit:" \
            "chmod 700 ${RUN_DIR@Q}, or setfacl --remove-default there, or set SLIPWAY_OUTPUT to" \
            "another folder"
}

# refuse_shared_above PATH: fails if others may put something else in the place of a folder on the
# way to what PATH leads to: where everybody may write above it, without the sticky bit, and may
# come there. Warns once where the group may, in a folder of the user's: of a project it is the
# user's team. In the folder of somebody else nobody but its owner can change that, and what a
# member puts there does not belong to the user.
refuse_shared_above() {
    local above folder mode group open='' shared=''
    ! is_trusted "$1" || return 0
    above=$(realpath --canonicalize-missing -- "$1")
    while [ -n "$above" ]; do
        above=${above%/*}
        folder=${above:-/}
        read -r mode _ _ group _ <<<"$(ls --directory --numeric-uid-gid -- "$folder")"
        if [ -O "$folder" ] && [[ $mode == ??????[-S]??[-T]* ]]; then
            open='' shared='' # closed to others
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
            "others can write $open, and so exchange $1, from which code is run: chmod o-w" \
            "${open@Q}, or, on a disk with one mode for all files, set SLIPWAY_TRUSTED_FOLDER"
    [ -z "$shared" ] || [ "$shared" = "${shared_above:-}" ] ||
        warn writable-by-others \
            "the group of $shared can exchange what is in it, such as $1, from which code is run:" \
            "chmod g-w ${shared@Q} unless you trust all its members"
    shared_above=$shared
}

# change_mode MODE PATH...: fails if that cannot be done where modes are looked at.
change_mode() {
    chmod --recursive "$1" -- "${@:2}" || is_trusted "$2"
}

# begin_attempt NUMBER: make its folder, with that number or a later one, and in it `job`, the job
# and its cluster, and `process`, this script; both are there as soon as the folder is. Sets attempt
# and log_dir.
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

# process_of PID: print its number and when it began, in ticks since the machine did; nothing where
# there is none, or where it has ended and is waited for.
process_of() {
    local line='' fields
    { read -r -d '' line <"/proc/$1/stat"; } 2>/dev/null || :
    read -r -a fields <<<"${line##*) }" # behind the name, which may have blanks
    [[ ${fields[0]:-Z} == [ZX] ]] || echo "$1 ${fields[19]}"
}

# log_guard_kill NUMBER: say it if that attempt was ended by guard.sh, whose log is not the job's.
log_guard_kill() {
    local log=$RUN_DIR/logs/$1/guard.log
    [ ! -s "$log" ] || warn node-lost "$(head --lines=1 -- "$log")"
}

# refuse_foreign_folder: fails if RUN_DIR holds something, and nothing that a run has left: what is
# there would be overwritten. Also if a run is there, and what this job is to replace is not of it.
refuse_foreign_folder() {
    local other
    [ ! -e "$RUN_DIR/job.sh" ] || return 0
    for other in "$RUN_DIR"/*; do
        [ -e "$other" ] && [ "$other" != "$RUN_DIR/logs" ] || continue
        ! holds_run || is_foreign_file "$other" || continue
        die folder-holds-other-files \
            "$RUN_DIR holds ${other##*/}, which is of no run: set SLIPWAY_RUN_DIR to a new folder"
    done
}

# is_foreign_file PATH: whether it has the name of what this job writes, and no attempt has written
# it.
is_foreign_file() {
    case ${1##*/} in
        lib) ! is_saved_library "$1" ;;
        input.toml) [ -z "${SLIPWAY_SCRIPT:-}" ] && ! cmp --quiet -- "$1" "${SLIPWAY_CONFIG:-}" ;;
        *) return 1 ;;
    esac
}

# holds_run: whether a job, or a trainer by itself, has left in RUN_DIR what each of them writes: by
# its content, since a file of the user's may have the same name.
holds_run() {
    local file
    first_line_has "$RUN_DIR/run.json" '"started": .*"world_size": ' && return
    first_line_has "$RUN_DIR/lock" '"pid_namespace": ' && return
    for file in "$RUN_DIR"/logs/*/job; do
        ! first_line_has "$file" '^[a-z]+ [^ ]+( [^ ]+)?$' || return 0
    done
    return 1
}

# first_line_has FILE PATTERN: whether it is a file, and its first line matches.
first_line_has() {
    local line=''
    [ -f "$1" ] || return
    read -r line 2>/dev/null <"$1" || :
    [[ $line =~ $2 ]]
}

# is_saved_library FOLDER: whether save_library has made it.
is_saved_library() {
    [ ! -L "$1" ] && [ -f "$1/$LIBRARY_MARK" ]
}

# refuse_concurrent_run: fails if what has begun an earlier attempt still runs: two trainings would
# write into one folder. It waits for the end of a job that has trained (the next rung of a sweep
# may begin while it cleans up), or that this one continues (it may depend on no job of an array),
# for at most 2 minutes. Fails, too, where nobody here can know. Where the scheduler does not
# answer, it warns, and the trainer's own lock has to do.
refuse_concurrent_run() {
    local folder number code runs words limit numbers=() seen=$'\n' silent='' unknown=()
    local its_scheduler its_job its_cluster its_host its_process
    for folder in "$RUN_DIR"/logs/*/; do
        number=${folder%/}
        number=${number##*/}
        [[ $number =~ ^[1-9][0-9]{0,8}$ ]] && ((number < attempt)) || continue
        numbers[number]=$number # in this order
    done
    # The newest first: of the attempts of one script, that one says whether it has trained.
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
            [[ $code$runs != [23]1 ]] || code=1 silent='' # it ran when the scheduler last answered
            [ "$code" = 1 ] || break
            runs=1
            ((SECONDS < limit)) || refuse_running_attempt "$number"
            sleep 2
        done
        [ "$code" != 2 ] || unknown+=("$its_job")
        [ "$code" != 3 ] || refuse_unverifiable_attempt "$number"
    done
    [ ${#unknown[@]} = 0 ] || [ -n "${log_dir:-}" ] || # it has been said
        warn folder-in-use \
            "the scheduler does not answer, so whether job $(join_by ', ' "${unknown[@]}") still" \
            "runs in $RUN_DIR is unknown: if it does, stop one of the two"
}

# refuse_unverifiable_attempt NUMBER: fails, as what has begun that attempt may run where nobody
# here sees it.
refuse_unverifiable_attempt() {
    read_attempt_owner "$1"
    [ -z "${log_dir:-}" ] || rm -rf -- "${log_dir:?}"
    die folder-in-use \
        "job $its_job${its_cluster:+ of $its_cluster} has begun attempt $1 in $RUN_DIR, on" \
        "${its_host:-a node}, and may still run: it has noted no end, and nobody here can tell." \
        "Stop it; or, if it has ended: echo ended >>${RUN_DIR@Q}/logs/$1/process"
}

# refuse_running_attempt NUMBER: fails, as that attempt runs. The number of this one, if any, is
# free again.
refuse_running_attempt() {
    local left
    read_attempt_owner "$1"
    left=$(processes_left "$1" | xargs)
    [ -z "${log_dir:-}" ] || rm -rf -- "${log_dir:?}"
    die folder-in-use \
        "job $its_job runs in $RUN_DIR: wait for its end, or stop it" \
        ${left:+"(on $HOSTNAME its processes $left)"}
}

# read_attempt_owner NUMBER: sets its_scheduler, its_job, its_cluster, its_host and its_process, of
# what has begun that attempt, as begin_attempt has noted it; empty where nothing is noted.
read_attempt_owner() {
    its_scheduler='' its_job='' its_cluster='' its_host='' its_process=''
    read -r its_scheduler its_job its_cluster 2>/dev/null <"$RUN_DIR/logs/$1/job" || :
    read -r its_host its_process 2>/dev/null <"$RUN_DIR/logs/$1/process" || :
}

# is_own_job: whether what read_attempt_owner has set is this very job.
is_own_job() {
    [ "$its_job" = "$job_id" ] && ! is_foreign_job
}

# is_foreign_job: whether it is of another scheduler, or has noted another cluster than this job's.
is_foreign_job() {
    [ "$its_scheduler" != "$scheduler" ] ||
        { [ -n "$its_cluster" ] && [ -n "$cluster" ] && [ "$its_cluster" != "$cluster" ]; }
}

# foreign_job_has_ended JOB CLUSTER: of this scheduler, but of another cluster of that; 2: no
# answer, as where none can be asked for.
foreign_job_has_ended() {
    return 2
}

# attempt_has_ended NUMBER: whether what has begun it runs no more, or is this very script; 2: the
# scheduler does not answer (sets `silent`, and asks it no more); 3: it was on another machine or
# cluster, of which nobody here knows. Of another job the scheduler is asked; where it cannot tell,
# what the job has noted itself counts. A job's own earlier run is over where the scheduler has put
# it back; but in one allocation somebody may start several scripts, which their processes tell
# apart.
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

# has_recorded_end NUMBER: whether what has begun it has noted its own end (record_script_end), or
# somebody for it; or its ranks have, by a verdict, unless they are started again after it
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

# record_script_end CODE: that this script has ended with CODE, for who asks has_recorded_end.
record_script_end() {
    [ -f "${log_dir:-}/process" ] || return 0
    echo "ended $1" 2>/dev/null >>"$log_dir/process"
}

# scheduler_ends_job: whether a scheduler ends all processes of this job before it starts it again.
scheduler_ends_job() {
    [ ${#SCHEDULER_COMMANDS[@]} != 0 ] && [ -z "${interactive:-}" ]
}

# processes_left NUMBER: print those on this node of a launch of that attempt's script that goes on,
# as its exit code is not there, though the script may have been killed. Reads what
# read_attempt_owner sets. A job's own are ended by terminate_earlier_ranks.
processes_left() {
    [ ! -e "$RUN_DIR/logs/$1/code" ] && [ -n "$its_process" ] && [ "$its_host" = "$HOSTNAME" ] &&
        ! scheduler_ends_job || return 0
    sh "$lib/find_ranks.sh" "$its_job.*.${its_process% *}.*" || :
}

# The number of the last attempt, by its folder or its verdict; 0 if there was none.
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

# Copy the library to RUN_DIR/lib, where later attempts, and the nodes, find it. A mark in it says
# that it is ours, to replace. Sets lib.
save_library() {
    local temporary=$RUN_DIR/.lib.$attempt
    if [ ! -e "$RUN_DIR/job.sh" ]; then # no earlier attempt came as far as to be continued
        # Python would make __pycache__ under the umask of a remote shell.
        copy_library "$temporary" && mkdir -- "$temporary/__pycache__" &&
            : >"$temporary/$LIBRARY_MARK" && change_mode go-w "$temporary" ||
                die cannot-write "cannot write $RUN_DIR/lib: is the disk full?"
        # Another job that begins here with the same library goes on using the one that is there.
        if is_saved_library "$RUN_DIR/lib" &&
            ! diff --recursive --brief -- "$temporary" "$RUN_DIR/lib" >/dev/null 2>&1; then
            rm -rf -- "${RUN_DIR:?}/lib" 2>/dev/null || :
        fi
        # Two jobs in one folder may both come here: the second finds the first one's.
        mv --no-target-directory -- "$temporary" "$RUN_DIR/lib" 2>/dev/null ||
            rm -rf -- "$temporary"
        is_saved_library "$RUN_DIR/lib" && [ -r "$RUN_DIR/lib/free_port.py" ] ||
            die cannot-write "cannot write $RUN_DIR/lib: is the disk full?"
    fi
    lib=$RUN_DIR/lib
}

# copy_library FOLDER: into a new one. A script with the library inside (jobgen render --standalone)
# has its own.
copy_library() {
    mkdir -- "$1" &&
        cp --recursive --no-preserve=mode -- "$lib/." "$1" &&
        rm -rf -- "$1/__pycache__" # Python may have left one in the clone
}

# save_job_script ARGUMENT...: write RUN_DIR/job.sh, this script with the settings and arguments
# that it was given, and nothing that follows from the allocation. `sbatch RUN_DIR/job.sh` continues
# the run. The configuration is copied beside it.
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

# saved_lines ARGUMENT...: what job.sh holds more than the script.
# shellcheck disable=SC2016 # the lines are for the shell that runs job.sh
saved_lines() {
    local name
    echo "# Kept settings (of job $job_id): what is set now wins, but not in that job itself."
    printf 'kept_run_dir=%q\n' "$RUN_DIR"
    cat <<'END'
if [ -O "$kept_run_dir/job.sh" ]; then
    command=$(sed --quiet 's/^ *Command=//p' <<<"${slurm_record:-}") # $0 is Slurm's copy
    for path in "$0" "${command%"${*:+ $*}"}" ${SLIPWAY_RUN_DIR:+"$SLIPWAY_RUN_DIR/job.sh"}; do
        [ "${path##*/}" = job.sh ] && [ -e "$path" ] || continue
        [ "$path" -ef "$kept_run_dir/job.sh" ] && continue
        echo "$script_name: error[run-folder-moved]: $path is not $kept_run_dir/job.sh, the run" \
            "that this script continues: submit that, or move its folder away first" >&2 || :
        exit 78
    done
    if [ "$scheduler${slurm_record:-}${SLIPWAY_RUN_DIR:-}${restarted:-}" = slurm ] &&
        [ "${0##*/}" != job.sh ]; then
        echo "$script_name: error[scheduler-silent]: Slurm does not say which job.sh this is; to" \
            "continue $kept_run_dir, submit it with SLIPWAY_RUN_DIR=${kept_run_dir@Q}" >&2 || :
        exit 78
    fi
    SLIPWAY_RUN_DIR=$kept_run_dir # whatever is set: this script continues this run
elif [ -z "${SLIPWAY_RUN_DIR:-}" ] || ! [ -O "$SLIPWAY_RUN_DIR/job.sh" ]; then
    echo "$script_name: error[run-folder-moved]: no job.sh in $kept_run_dir: set" \
        "SLIPWAY_RUN_DIR to where it is now" >&2 || :
    exit 78
fi
END
    declare -f refuse_shared is_private is_trusted # of this library, not of the script
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
        if [ "${!name}" = "$RUN_DIR/input.toml" ]; then # wherever the folder is then
            printf 'restore_setting %s "$SLIPWAY_RUN_DIR/input.toml"\n' "$name"
        else
            printf 'restore_setting %s %q\n' "$name" "${!name}"
        fi
    done < <(settings_to_save)
    [ $# -eq 0 ] || printf '[ $# -gt 0 ] || [ -n "${SLIPWAY_ARGS:-}" ] || set -- %s\n' "${*@Q}"
    echo '# Kept settings end.'
}

# The names of the settings that somebody has set, now (they are exported then) or for an earlier
# attempt, and of those whose defaults depend on the folder of submission.
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

# is_exported NAME: whether somebody has set it, as scripts do not export their defaults.
is_exported() {
    [[ $(declare -p "$1" 2>/dev/null) =~ ^declare\ -[A-Za-z]*x ]]
}
