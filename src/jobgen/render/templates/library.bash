# The functions called below are in SLIPWAY_LIB, in lib beside this script, or in jobscripts/lib of
# the folder of submission. They run only if they belong to you, to root or to the owner of what you
# named (this script, SLIPWAY_LIB), and no other user can write them.
@{script_path}
if [ -n "${SLIPWAY_LIB:-}" ]; then
    lib=$SLIPWAY_LIB owner=$lib
elif [ -r "${script%/*}/lib/@{scheduler}.bash" ]; then
    lib=${script%/*}/lib owner=$script
else
    lib=$submit_folder/jobscripts/lib owner=$0
fi
if ! [ -r "$lib/@{scheduler}.bash" ]; then
    echo "$script_name: error[no-library]: no library in ${lib@Q}: submit in a clone, or set" \
        "SLIPWAY_LIB" >&2 || :
    exit 78
fi
lib=$(realpath -- "$lib")
refuse_shared "$(stat --dereference --format=%u -- "$owner" 2>/dev/null)" \
    "$lib" "$lib"/*
source "$lib/@{scheduler}.bash"
@{launcher_source}
