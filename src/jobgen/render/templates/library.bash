# The script library, with the functions called below: SLIPWAY_LIB, or lib beside this script, or
# jobscripts/lib in the folder of submission. It runs only if it belongs to you, to root or to the
# owner of this script (of SLIPWAY_LIB, if set), and no other user can write it.
@{script_path}
if [ -n "${SLIPWAY_LIB:-}" ]; then
    lib=$SLIPWAY_LIB owner=$lib
elif [ -r "${script%/*}/lib/@{scheduler}.bash" ]; then
    lib=${script%/*}/lib owner=$script
else
    lib=$submit_folder/jobscripts/lib owner=$0
fi
if ! [ -r "$lib/@{scheduler}.bash" ]; then
    echo "$script_name: error[no-library]: no script library in ${lib@Q}: submit in a clone," \
        "or set SLIPWAY_LIB" >&2 || :
    exit 78
fi
lib=$(realpath -- "$lib")
refuse_shared "$(stat --dereference --format=%u -- "$owner" 2>/dev/null)" \
    "$lib" "$lib"/*
source "$lib/@{scheduler}.bash"
@{launcher_source}
