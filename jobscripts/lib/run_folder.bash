# shellcheck shell=bash
# The run folder: open it for this job, and refuse one that contains something else or that other
# users could change.

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
