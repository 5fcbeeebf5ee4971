# shellcheck shell=bash
# Refuse to run a library that other users could have changed. Each script contains these functions,
# as it calls them before it sources the library.

# refuse_shared OWNER PATH...: fail unless the user, root or OWNER (a UID) owns each PATH and no
# other user can write it: by its mode (w of the group or of all) or by an ACL (a plus in the mode).
# The group may write if it is private. The first PATH is the folder of the others.
refuse_shared() {
    local mode links owner group rest
    ! is_trusted "$2" || return 0
    while read -r mode links owner group rest; do
        case " 0 $EUID $1 /$mode" in
            *" $owner "*/?????-??-*) continue ;;
            *" $owner "*/?????w??-*[!+]) ! is_private "$group" "$owner" || continue ;;
        esac
        echo "$script_name: error[writable-by-others]: other users own or can write a file that" \
            "the job would run or use ($mode $links $owner $group $rest): check it, then" \
            "chmod -R go-w ${2@Q}, or, on a disk with one mode for all files, set" \
            "SLIPWAY_TRUSTED_FOLDER" >&2 || :
        exit 78
    done <<<"$(ls --directory --dereference --numeric-uid-gid --sort=none --time-style=+ \
        -- "${@:2}" 2>&1)"
}

# is_private GROUP USER: succeed if GROUP (a GID) is the private group of USER (a UID): the primary
# group, with the user's name and without other members, and not the primary group of another user
# that `getent passwd` lists within 10 s. Root has none.
is_private() {
    local name group
    [ "${private_group:-}" != "$1 $2" ] || return 0
    IFS=: read -r name _ _ group _ <<<"$(getent passwd "$2")"
    [ "$2" != 0 ] && [ "$group" = "$1" ] &&
        [[ $(getent group "$1") =~ ^"$name":[^:]*:"$1":("$name")?$ ]] &&
        { timeout 10 getent passwd || :; } | awk -F: -v group="$1" -v user="$2" \
            '$4 == group && $3 != user { found = 1 } END { exit found }' &&
        private_group="$1 $2"
}

# is_trusted PATH: succeed if PATH is in SLIPWAY_TRUSTED_FOLDER, which the user declares safe.
is_trusted() {
    local path folder
    [[ ${SLIPWAY_TRUSTED_FOLDER:-} == /?* ]] || return
    folder=$(realpath -- "$SLIPWAY_TRUSTED_FOLDER") && path=$(realpath -- "$1") || return
    [[ $path/ == "$folder"/* ]]
}
