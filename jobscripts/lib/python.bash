# shellcheck shell=bash
# The Python that processes use with USE_CONTAINER=0: a virtual or conda environment, on a shared
# disk or on each node's local disk, or environment modules.

# find_python: find the Python of SLIPWAY_VENV, which is a path, conda:NAME, local or modules. Sets
# venv, which is empty for modules, and puts it first on PATH, because it may contain mpirun. Fails
# if it is missing.
find_python() {
    case $SLIPWAY_VENV in
        local)
            venv='' # build_local_venv sets it
            check_wheelhouse
            ;;
        modules)
            venv=''
            type -P python3 >/dev/null ||
                die no-environment \
                    "SLIPWAY_VENV=modules: no python3 on $HOSTNAME: add its module to the" \
                    "site file"
            ;;
        conda:*)
            venv=$(find_conda "${SLIPWAY_VENV#conda:}") || exit
            use_venv "$venv"
            ;;
        # Resolve a link, as a build may change it while the job runs.
        *) use_venv "$(realpath --canonicalize-missing -- "$SLIPWAY_VENV")" ;;
    esac
}

# check_wheelhouse: fail unless SLIPWAY_VENV=local can install from a folder of wheels, or the site
# file allows nodes to download (site_downloads).
check_wheelhouse() {
    if [ -n "${SLIPWAY_WHEELHOUSE:-}" ]; then
        [ -d "$SLIPWAY_WHEELHOUSE" ] ||
            die no-wheelhouse "SLIPWAY_WHEELHOUSE: $SLIPWAY_WHEELHOUSE is not a folder:" \
                "\`make wheelhouse\` makes one"
    elif [ -z "${site_downloads:-}" ]; then
        die no-wheelhouse \
            "SLIPWAY_VENV=local would download on every node: set SLIPWAY_WHEELHOUSE to a folder" \
            "made by \`make wheelhouse\`, or set downloads = true in the site file and generate" \
            "this script again"
    fi
}

# use_venv FOLDER: use an environment that contains Python. Sets venv and PATH. Fails if
# FOLDER/bin/python is missing.
use_venv() {
    [ -x "$1/bin/python" ] ||
        die no-environment \
            "SLIPWAY_VENV: $1/bin/python is missing: run \`jobgen submit venv_build --site SITE\`" \
            "to make the environment, or set USE_CONTAINER=1"
    venv=$1
    PATH=$venv/bin:$PATH
    activate_conda
}

# find_conda NAME: print the folder of the conda environment of that name, from conda's list of
# environments. Fails if there is none.
find_conda() {
    local folder found=''
    if [ -f "${HOME:-}/.conda/environments.txt" ]; then
        while IFS= read -r folder; do
            [ "${folder##*/}" != "$1" ] || [ ! -x "$folder/bin/python" ] || found=$folder
        done <"$HOME/.conda/environments.txt"
    fi
    [ -n "$found" ] ||
        die no-environment \
            "SLIPWAY_VENV: no environment $1 in ${HOME:-}/.conda/environments.txt: set it to the" \
            "folder that \`conda env list\` shows"
    echo "$found"
}

# check_packages: fail if the Python of the first node lacks packages that the trainer needs. Skips
# the check for a user script.
check_packages() {
    [ "$USE_CONTAINER" = 0 ] && [ -z "$SLIPWAY_SCRIPT" ] || return 0
    run_for_answer 120 check_packages.py || return 0 # the preflight reports the reason
    [ ${#answer[@]} = 0 ] ||
        die no-environment \
            "SLIPWAY_VENV=$SLIPWAY_VENV: its Python lacks $(join_by ', ' "${answer[@]}")." \
            "\`python3 -m venv --system-site-packages FOLDER\`, with the site's modules loaded," \
            "and \`FOLDER/bin/pip install '.[train]'\` in a clone add them: set SLIPWAY_VENV to" \
            "that folder. A user script (SLIPWAY_SCRIPT) does not need them"
}

# isolate_python: unset the variables that are meant for another Python, and hide the packages in
# the user's home folder.
isolate_python() {
    unset -v PYTHONHOME PYTHONSTARTUP
    keeps_python_path || unset -v PYTHONPATH
    export_to_ranks PYTHONNOUSERSITE=1
}

# keeps_python_path: return 0 if PYTHONPATH contains packages from modules that the job uses.
keeps_python_path() {
    [ "$USE_CONTAINER" = 0 ] || return 1
    [ "$SLIPWAY_VENV" = modules ] ||
        grep --quiet --ignore-case '^include-system-site-packages *= *true' \
            "$venv/pyvenv.cfg" 2>/dev/null
}

# activate_conda: if the environment is conda's, export the variables that its packages' activation
# scripts set. The scripts run in a subshell without -e and -u, as under `conda activate`; their
# other changes stay in it. Fails if one of them ends the subshell.
activate_conda() {
    local pair path environment=()
    [ -d "$venv/conda-meta" ] || return 0
    mapfile -d '' -t environment < <(
        set +euo pipefail
        export CONDA_PREFIX=$venv
        for path in "$venv"/etc/conda/activate.d/*.sh; do
            [ ! -r "$path" ] || source "$path" >&2
        done
        env --null
    )
    [ ${#environment[@]} -gt 0 ] ||
        die no-environment \
            "SLIPWAY_VENV: a script in $venv/etc/conda/activate.d called exit: see above"
    for pair in "${environment[@]}"; do
        export_pair "$pair"
    done
}

# check_clone FILE: check the clone of the project that a build runs or installs from, like the
# library. Fails if FILE is missing or others can write the clone. .git/config is checked too,
# because Git runs programs that its configuration names.
check_clone() {
    local path parts=()
    # Enter the real folder: what is checked must be what is run, even if a link changes.
    cd -P . || die cannot-read "cannot enter $PWD"
    [ -x "$1" ] || die no-clone "$PWD contains no $1: submit this job in a clone of the project"
    shopt -s globstar
    for path in "$PWD" "$PWD"/{build,configs,containers,jobscripts,src}/** \
        "$PWD"/{apptainer.def,Dockerfile,LICENSE,README.md,pyproject.toml,.git,.git/config}; do
        [ ! -e "$path" ] || parts+=("$path")
    done
    shopt -u globstar
    refuse_shared "$(stat --dereference --format=%u -- "$lib" 2>/dev/null)" "${parts[@]}"
    refuse_shared_above "$PWD"
}

# build_local_venv: with SLIPWAY_VENV=local, make a virtual environment on every node's local disk,
# for sites whose shared disk is slow with many small files. Sets venv. Fails if another user owns
# or can write the clone: unlike in check_clone's other calls, the library is the copy in the run
# folder, so its owner is the user.
build_local_venv() {
    [ "$USE_CONTAINER" = 0 ] && [ "$SLIPWAY_VENV" = local ] || return 0
    cleanup_seconds=60 # there are thousands of files to remove
    venv=$scratch/venv
    PATH=$venv/bin:$PATH
    check_clone build/setup
    run_step_on_nodes 3600 env PIP_NO_CACHE_DIR=1 VENV="$venv" VARIANT="${SLIPWAY_VARIANT:-cuda}" \
        WHEELHOUSE="${SLIPWAY_WHEELHOUSE:-}" PYTHON="${SLIPWAY_PYTHON:-python3}" \
        build/setup train ||
        die build-failed "cannot make the environment on every node$step_failure"
}
