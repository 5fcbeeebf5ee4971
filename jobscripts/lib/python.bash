# shellcheck shell=bash
# Where processes find Python with USE_CONTAINER=0: a virtual environment or one of conda, on a
# shared disk or on that of each node, or environment modules.

# find_python: reads SLIPWAY_VENV, which is a path, conda:NAME, local, or modules. Sets venv, empty
# for the last, and puts it before PATH, also before steps: it may hold mpirun. Fails if it is
# missing.
find_python() {
    case $SLIPWAY_VENV in
        local)
            venv='' # build_local_venv makes it
            check_wheelhouse
            ;;
        modules)
            venv=''
            type -P python3 >/dev/null ||
                die no-environment \
                    "SLIPWAY_VENV=modules: no python3 on $HOSTNAME: name its module in the" \
                    "site's file"
            ;;
        conda:*)
            venv=$(find_conda "${SLIPWAY_VENV#conda:}") || exit
            use_venv "$venv"
            ;;
        *) use_venv "$(realpath --canonicalize-missing -- "$SLIPWAY_VENV")" ;; # a link may be moved
    esac
}

# check_wheelhouse: fails unless SLIPWAY_VENV=local installs from a folder of wheels, or the site's
# file lets each node download (site_downloads).
check_wheelhouse() {
    if [ -n "${SLIPWAY_WHEELHOUSE:-}" ]; then
        [ -d "$SLIPWAY_WHEELHOUSE" ] ||
            die no-wheelhouse "SLIPWAY_WHEELHOUSE: no folder $SLIPWAY_WHEELHOUSE:" \
                "\`make wheelhouse\` fills one"
    elif [ -z "${site_downloads:-}" ]; then
        die no-wheelhouse \
            "SLIPWAY_VENV=local would download on every node: set SLIPWAY_WHEELHOUSE to a folder" \
            "that \`make wheelhouse\` has filled, or downloads = true in the site's file, and" \
            "generate this script anew"
    fi
}

# use_venv FOLDER: an environment with its own Python.
use_venv() {
    [ -x "$1/bin/python" ] ||
        die no-environment \
            "SLIPWAY_VENV: $1/bin/python is missing; \`jobgen submit venv_build --site SITE\`" \
            "makes it, or set USE_CONTAINER=1"
    venv=$1
    PATH=$venv/bin:$PATH
    activate_conda
}

# find_conda NAME: print the folder of conda's environment of that name, from the list that conda
# keeps of all that it has made.
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

# check_packages: fails if the Python of the head node lacks what the trainer needs. A script of the
# user's own needs none of it.
check_packages() {
    [ "$USE_CONTAINER" = 0 ] && [ -z "$SLIPWAY_SCRIPT" ] || return 0
    run_for_answer 120 check_packages.py || return 0 # whatever it is, the preflight finds it
    [ ${#answer[@]} = 0 ] ||
        die no-environment \
            "SLIPWAY_VENV=$SLIPWAY_VENV: its Python lacks $(join_by ', ' "${answer[@]}")." \
            "\`python3 -m venv --system-site-packages FOLDER\`, with the site's modules loaded," \
            "and \`FOLDER/bin/pip install '.[train]'\` in a clone add them: set SLIPWAY_VENV to" \
            "that folder. A script of your own (SLIPWAY_SCRIPT) needs none of them"
}

# isolate_python: unset what was made for another Python, or another user's packages.
isolate_python() {
    unset -v PYTHONHOME PYTHONSTARTUP
    keeps_python_path || unset -v PYTHONPATH
    export_to_ranks PYTHONNOUSERSITE=1
}

# keeps_python_path: whether modules have put packages on PYTHONPATH that the job is to see.
keeps_python_path() {
    [ "$USE_CONTAINER" = 0 ] || return 1
    [ "$SLIPWAY_VENV" = modules ] ||
        grep --quiet --ignore-case '^include-system-site-packages *= *true' \
            "$venv/pyvenv.cfg" 2>/dev/null
}

# activate_conda: where the environment is conda's, export what the activation scripts of its
# packages set. They run in a shell of their own, as `conda activate` would run them: without -e and
# -u, and whatever else they change there stays there. Fails where one of them ends that shell.
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
            "SLIPWAY_VENV: a script in $venv/etc/conda/activate.d has ended its shell: see above"
    for pair in "${environment[@]}"; do
        export_pair "$pair"
    done
}

# check_clone FILE: what builds needs the project's folder, and runs or installs what is in it, as
# the library is run: fails if others can write that. Git runs programs that its configuration
# names.
check_clone() {
    local path parts=()
    # What is looked at is what is run, whatever becomes of a link.
    cd -P . || die cannot-read "cannot enter $PWD"
    [ -x "$1" ] || die no-clone "no $1 in $PWD: submit this job in a clone of the project"
    shopt -s globstar
    for path in "$PWD" "$PWD"/{build,configs,containers,jobscripts,src}/** \
        "$PWD"/{apptainer.def,Dockerfile,LICENSE,README.md,pyproject.toml,.git,.git/config}; do
        [ ! -e "$path" ] || parts+=("$path")
    done
    shopt -u globstar
    refuse_shared "$(stat --dereference --format=%u -- "$lib" 2>/dev/null)" "${parts[@]}"
    refuse_shared_above "$PWD"
}

# build_local_venv: with SLIPWAY_VENV=local a virtual environment on the local disk of every node,
# for sites whose shared disk is slow with many small files. Sets venv. Fails if others can write
# the clone: the run folder's own library does not vouch for the owner of one.
build_local_venv() {
    [ "$USE_CONTAINER" = 0 ] && [ "$SLIPWAY_VENV" = local ] || return 0
    cleanup_seconds=60 # it has thousands of files
    venv=$scratch/venv
    PATH=$venv/bin:$PATH
    check_clone build/setup
    step_on_each_node 3600 env PIP_NO_CACHE_DIR=1 VENV="$venv" VARIANT="${SLIPWAY_VARIANT:-cuda}" \
        WHEELHOUSE="${SLIPWAY_WHEELHOUSE:-}" PYTHON="${SLIPWAY_PYTHON:-python3}" \
        build/setup train ||
        die build-failed "no environment could be made on every node$step_failure"
}
