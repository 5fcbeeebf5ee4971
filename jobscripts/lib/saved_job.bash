# shellcheck shell=bash
# The copies in the run folder of script, library, settings and configuration, with which the run
# can be continued even if the clone changes.

readonly LIBRARY_MARK=.slipway-library # file that marks the copy in a run folder

# change_mode MODE PATH...: run chmod recursively. Fails if chmod does, unless the first PATH is in
# SLIPWAY_TRUSTED_FOLDER, where modes are not checked.
change_mode() {
    chmod --recursive "$1" -- "${@:2}" || is_trusted "$2"
}

# is_saved_library FOLDER: return 0 if save_library has made the folder.
is_saved_library() {
    [ ! -L "$1" ] && [ -f "$1/$LIBRARY_MARK" ]
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
            SLIPWAY_IMAGE | SLIPWAY_VENV) echo "$name" && continue ;;
            SLIPWAY_CONFIG) [ -n "${SLIPWAY_SCRIPT:-}" ] || { echo "$name" && continue; } ;;
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
