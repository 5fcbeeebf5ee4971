# shellcheck shell=bash
# Nothing runs that others could have changed. Each script holds these two functions too, since it
# calls them before it runs the library.

# refuse_shared OWNER GROUP PATH...: fails unless the user, root or OWNER (a number) owns each PATH,
# and nobody else may write it; the group may where GROUP is w. A mode shows what an ACL allows.
# Column 6 of a mode is w where the group may write, column 9 where all others may.
refuse_shared() {
    local found
    found=$(stat --dereference --format='%A %u %n' -- "${@:3}" 2>&1 |
        grep --text --extended-regexp --invert-match "^.{5}[-$2]..-. (0|$EUID|$1) ") || :
    [ -n "$found" ] || return 0
    echo "$script_name: error[writable-by-others]: this would be run, and others own it or can" \
        "write it (mode, owner, path): ${found%%$'\n'*}; look into it, then chmod go-w" >&2
    exit 78
}

# group_of PATH: prints w where the group may write PATH, as umask 002 makes it, and cannot come
# there: a folder above is the user's, and closed to everybody else.
group_of() {
    local above=$1
    while [ -n "$above" ]; do
        above=${above%/*}
        if [ -O "${above:-/}" ] &&
            [[ $(stat --format=%A -- "${above:-/}") == ??????[-S]??[-T] ]]; then
            echo w
            return
        fi
    done
}
