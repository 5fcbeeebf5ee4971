# The functions called below are in SLIPWAY_LIB, in lib beside this script, or in jobscripts/lib of
# the folder of submission.
@{script_path}
if [ -n "${SLIPWAY_LIB:-}" ]; then
    lib=$SLIPWAY_LIB
elif [ -r "${script%/*}/lib/@{scheduler}.bash" ]; then
    lib=${script%/*}/lib
else
    lib=$submit_folder/jobscripts/lib
fi
if ! [ -r "$lib/@{scheduler}.bash" ]; then
    echo "$script_name: error[no-library]: no library in ${lib@Q}: submit in a clone, or set" \
        "SLIPWAY_LIB" >&2
    exit 78
fi
lib=$(realpath -- "$lib")
source "$lib/@{scheduler}.bash"
@{launcher_source}
