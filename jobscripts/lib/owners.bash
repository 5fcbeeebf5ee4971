# shellcheck shell=bash
# Nothing runs that others could have changed. Each script holds these functions too, since it calls
# them before it runs the library.

# refuse_shared OWNER PATH...: fails unless the user, root or OWNER (a number) owns each PATH, and
# nobody else may write it, but a private group. A mode shows what an ACL allows, and ls marks it
# with a plus. The first PATH holds the others.
# Column 6 of a mode is w where the group may write, column 9 where all others may.
refuse_shared() {
    local mode links owner group rest private='' found=''
    ! is_trusted "$2" || return 0
    while [ -z "$found" ] && read -r mode links owner group rest; do
        [[ " 0 $EUID $1 " == *" $owner "* ]] || found=1
        case $mode in
            ?????-??-*) ;;
            ?????w??-? | ?????w??-?.)
                private=${private:-$(private_groups "$EUID" "$1")}
                [[ $private == *" $group "* ]] || found=1
                ;;
            *) found=1 ;;
        esac
    done <<<"$(ls --directory --dereference --numeric-uid-gid --sort=none --time-style=+ \
        -- "${@:2}" 2>&1)"
    [ -n "$found" ] || return 0
    echo "$script_name: error[writable-by-others]: this would be run, and others own it or can" \
        "write it ($mode $links $owner $group $rest): look into it, then chmod -R go-w ${2@Q}," \
        "or, on a disk with one mode for all files, set SLIPWAY_TRUSTED_FOLDER" >&2 || :
    exit 78
}

# private_groups USER...: print the numbers of the groups, with blanks around them, that each of
# these users (numbers) has to itself: its primary group, which has its name and no other member.
# RHEL and Debian make them, and with them the umask 002. Root has none.
private_groups() {
    local name user group
    for user; do
        IFS=: read -r name _ user group _ <<<"$(getent passwd "$user")"
        [ -n "$name" ] && [ "$user" != 0 ] || continue
        [[ ! $(getent group "$group") =~ ^"$name":[^:]*:"$group":("$name")?$ ]] ||
            echo -n " $group "
    done
}

# is_trusted PATH: whether it is in SLIPWAY_TRUSTED_FOLDER, where the user answers for who writes.
is_trusted() {
    local path folder
    [[ ${SLIPWAY_TRUSTED_FOLDER:-} == /?* ]] || return
    folder=$(realpath -- "$SLIPWAY_TRUSTED_FOLDER") && path=$(realpath -- "$1") || return
    [[ $path/ == "$folder"/* ]]
}
