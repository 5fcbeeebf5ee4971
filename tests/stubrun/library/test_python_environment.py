"""Where processes find Python without a container: a virtual environment, conda, modules, or one made on each node."""

import pytest

from bash_library import ANSWER, assert_dies, assert_ended

FIND = 'USE_CONTAINER=0; find_python; echo "$venv"'


@pytest.mark.parametrize(
    ("code", "slug", "values"),
    [
        ("use_venv /gone", "no-environment", ["SLIPWAY_VENV", "/gone/bin/python"]),
        ("find_conda mine", "no-environment", ["SLIPWAY_VENV", "mine", "/.conda/", "`conda env list`"]),
        (f"SLIPWAY_VENV=conda:mine; {FIND}", "no-environment", ["SLIPWAY_VENV", "mine", "/.conda/"]),
        (
            f"SLIPWAY_VENV=local; {FIND}",
            "no-wheelhouse",
            ["SLIPWAY_VENV=local", "SLIPWAY_WHEELHOUSE", "downloads = true"],
        ),
        ("SLIPWAY_WHEELHOUSE=/gone; check_wheelhouse", "no-wheelhouse", ["SLIPWAY_WHEELHOUSE", "/gone"]),
        (
            f"SLIPWAY_VENV=modules PATH=/nowhere; {FIND}",
            "no-environment",
            ["SLIPWAY_VENV=modules", "python3"],
        ),
    ],
)
def test_missing_environment_is_refused(bash, tmp_path, code, slug, values):
    assert_dies(bash(code), slug, *[value.replace("/.conda/", f"{tmp_path}/.conda/") for value in values])


@pytest.mark.parametrize(
    "settings", ["site_downloads=1 SLIPWAY_VENV=local", "SLIPWAY_WHEELHOUSE=$PWD SLIPWAY_VENV=local",
                 "SLIPWAY_VENV=modules"]
)  # fmt: skip
def test_modules_or_local_environment_needs_no_venv_folder(bash, settings):
    assert bash(f"{settings}; {FIND}", programs={"python3": ""})[:2] == (0, "\n")


def test_conda_environment_is_found_by_name(bash, place):
    make = 'mkdir -p envs/mine/bin "$HOME/.conda"; ln -s /bin/true envs/mine/bin/python; '
    make += 'printf "%s\\n" /gone/mine "$PWD/envs/mine" /else >"$HOME/.conda/environments.txt"; '
    show = f'SLIPWAY_VENV=conda:mine; {FIND}; [[ $PATH == "$venv/bin":* ]] && echo first'
    assert bash(make + show).out == f"{place}/envs/mine\nfirst\n"


@pytest.mark.parametrize(
    ("settings", "site_packages", "kept"),
    [
        ("USE_CONTAINER=0", "true", "kept"),
        ("USE_CONTAINER=0", "false", "not"),
        ("USE_CONTAINER=1", "true", "not"),
        ("USE_CONTAINER=0 SLIPWAY_VENV=modules venv=", "", "kept"),
    ],
)
def test_pythonpath_is_kept_for_module_packages(bash, settings, site_packages, kept):
    make = f"mkdir venv; echo include-system-site-packages = {site_packages} >venv/pyvenv.cfg; "
    assert bash(f"{make}{settings}; keeps_python_path && echo kept || echo not").out == f"{kept}\n"


@pytest.mark.parametrize(
    ("settings", "seen"), [("USE_CONTAINER=1", "///1"), ("USE_CONTAINER=0 SLIPWAY_VENV=modules", "x///1")]
)
def test_isolate_python_unsets_python_variables(bash, settings, seen):
    show = 'isolate_python; echo "${PYTHONPATH-}/${PYTHONHOME-}/${PYTHONSTARTUP-}/$PYTHONNOUSERSITE"'
    env = dict.fromkeys(("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"), "x")
    assert bash(f"{settings}; {show}", **env).out == f"{seen}\n"


@pytest.mark.parametrize(
    ("settings", "slug"),
    [("USE_CONTAINER=0", "no-environment"), ("USE_CONTAINER=1", ""), ("SLIPWAY_SCRIPT=mine.py USE_CONTAINER=0", "")],
)
def test_missing_trainer_packages_are_listed(bash, settings, slug):
    python = {"python3": ANSWER + 'echo of a module; answer "$2" torch msgspec'}
    done = bash(f"{settings}; check_packages >/dev/null", programs=python)
    assert_ended(done, slug, "SLIPWAY_VENV=", "torch, msgspec", "--system-site-packages")


class TestCondaActivation:
    @pytest.fixture(autouse=True)
    def scripts(self, place):
        """Write a script of a package, and return its folder."""
        scripts = place / "venv" / "etc" / "conda" / "activate.d"
        scripts.mkdir(parents=True)
        exports = '[ -n "$NOWHERE" ] && export NOWHERE\nfalse\nimage=other\nexport PROJ_DATA="$CONDA_PREFIX/a b"\n'
        (scripts / "proj.sh").write_text(f"echo said\n{exports}")
        (scripts / "proj.csh").write_text("setenv PROJ_DATA x\n")
        return scripts

    SHOW = 'activate_conda; echo "${CONDA_PREFIX-none} ${PROJ_DATA-none} ${image##*/}"; [[ $- == *e*u* ]]'

    def test_variables_of_activation_scripts_are_exported(self, bash, place):
        assert bash(self.SHOW)[:2] == (0, "none none i.sif\n")  # it is not a conda prefix
        activated = f"{place}/venv {place}/venv/a b i.sif\n"
        assert bash(f"mkdir venv/conda-meta; {self.SHOW}") == (0, activated, "said\n")

    def test_activation_script_that_exits_is_refused(self, bash, scripts):
        (scripts / "zlib.sh").write_text("echo broken; exit 1\n")
        ended = bash(f"mkdir venv/conda-meta; {self.SHOW}")
        assert_dies(ended, "no-environment", "SLIPWAY_VENV", f"{scripts} ", lines=3)
        assert (ended.out, ended.err.splitlines()[:2]) == ("", ["said", "broken"])
