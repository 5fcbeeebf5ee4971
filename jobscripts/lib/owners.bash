# shellcheck shell=bash
# No part of the library runs that others could have changed. Each script holds these functions too,
# as it calls them before it runs the library.

# refuse_shared OWNER PATH...: fails unless the user, root or OWNER (a number) owns each PATH, and
# nobody else may write it by its mode (w of the group, w of all) or an ACL (a plus), but a private
# group. The first PATH holds the others.
refuse_shared() {
    local mode links owner group rest
    ! is_trusted "$2" || return 0
    while read -r mode links owner group rest; do
        case " 0 $EUID $1 /$mode" in
            *" $owner "*/?????-??-*) continue ;;
            *" $owner "*/?????w??-*[!+]) ! is_private "$group" "$owner" || continue ;;
        esac
        echo "$script_name: error[writable-by-others]: others own or can write this, which would" \
            "be run or used ($mode $links $owner $group $rest): look into it, then chmod -R go-w" \
            "${2@Q}, or, on a disk with one mode for all files, set SLIPWAY_TRUSTED_FOLDER" >&2 || :
        exit 78
    done <<<"$(ls --directory --dereference --numeric-uid-gid --sort=none --time-style=+ \
        -- "${@:2}" 2>&1)"
}

# is_private GROUP USER: whether the group (numbers) is the user's own: its primary group, of the
# same name, without another member, and not the primary group of another user, as far as `getent
# passwd` lists users within 10 s. Root has none.
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

# is_trusted PATH: whether it is in SLIPWAY_TRUSTED_FOLDER, where the user answers for who writes.
is_trusted() {
    local path folder
    [[ ${SLIPWAY_TRUSTED_FOLDER:-} == /?* ]] || return
    folder=$(realpath -- "$SLIPWAY_TRUSTED_FOLDER") && path=$(realpath -- "$1") || return
    [[ $path/ == "$folder"/* ]]
}
