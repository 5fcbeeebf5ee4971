"""Settings of a job: valid values, paths, values kept for a continued run; environment modules."""

import re

import pytest

from bash_library import LIB, START, assert_ended
from messages import assert_warning
from slipway.base.contract import SETTINGS

EITHER = "require no-data 'file or folder' X"
MODULE = 'module() { echo "$*"; : "$UNSET"; [ "$2" != broken ]; }; '


@pytest.mark.parametrize(
    ("code", "slug", "values"),
    [
        (
            "SLIPWAY_STAGE=yes; check_setting SLIPWAY_STAGE",
            "bad-value",
            ["SLIPWAY_STAGE", "'yes'", SETTINGS["SLIPWAY_STAGE"].kind.expected],
        ),
        (
            "BACKEND=horovod; check_backend single",
            "wrong-backend",
            ["BACKEND=horovod", "single", "`jobgen render horovod-gloo --site SITE`"],
        ),
        ("X=gone; require no-script folder X 'make it'", "no-script", ["X:", " gone ", "make it"]),
        ("mkfifo f; X=f; require no-data file X", "no-data", ["X:", " f ", "file"]),
        ("mkfifo f; X=f; require no-data folder X", "no-data", ["X:", " f ", "folder"]),
        (f"mkfifo f; X=f; {EITHER}", "no-data", ["X:", " f ", "file or folder"]),
        ("X=disk; require no-data file X", "no-data", ["X:", " disk ", "file"]),
        ("touch there; X=there; require no-data folder X", "no-data", ["X:", " there ", "folder"]),
        ("unset SLIPWAY_STAGE; check_setting SLIPWAY_STAGE; check_setting SLIPWAY_DATA", "", []),
        ("check_backend ddp horovod", "", []),
        (f"touch there; X=there; require no-data file X; {EITHER}", "", []),
        (f"X=disk; {EITHER}; require no-data folder X", "", []),
        ("log_settings; log_missing_environment", "", []),
        (f"{MODULE}load_modules 0 broken b >/dev/null", "no-modules", ["broken b"]),
        ("module() { PATH=/nowhere; }; load_modules 1 a", "no-modules", ["srun", "purge_modules = false"]),
        # regression: without modules on the node the script ended with 127 and no message
        ("load_modules 1 a", "no-modules", ["`module`"]),
    ],
)
def test_invalid_settings_and_paths_are_refused(bash, code, slug, values):
    assert_ended(bash(code), slug, *values)


def test_check_settings_makes_paths_absolute_without_exporting_run_dir(bash, place):
    (place / "c.toml").touch()
    code = "unset RUN_DIR; SLIPWAY_CONFIG=c.toml SLIPWAY_OUTPUT=../x; SLIPWAY_RUN_DIR=r; SLIPWAY_ARGS=; "
    code += "check_settings; "
    code += 'printf "%s\\n" "$SLIPWAY_CONFIG" "$SLIPWAY_OUTPUT"; env | grep RUN_DIR || :'
    assert bash(code) == (0, f"{place}/c.toml\n{place.parent}/x\n", "")


# regression: two runs in one job ended each other's steps
def test_run_mark_depends_on_run_folder(bash):
    code = "unset RUN_DIR; SLIPWAY_OUTPUT=x run_dir=$1; check_settings; echo $run_mark"
    first, again, other = (bash(code, run)[1] for run in ("run", "run/../run", "run 2"))
    assert re.fullmatch(r"[0-9a-f]{16}\n", first), first
    assert first == again != other


@pytest.mark.parametrize(("folder", "found"), [("disk", "/disk"), ("/gone", "")])
def test_check_settings_changes_to_folder_of_first_attempt(bash, place, folder, found):
    code = f"unset RUN_DIR; SLIPWAY_OUTPUT=x SLIPWAY_RUN_DIR= SLIPWAY_ARGS=; kept_folder={folder}; check_settings; pwd"
    assert bash(code).out == f"{place}{found}\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [("a", "{}/a"), ("./a//b/", "{}/a/b"), ("/x/../y", "/y"), ("", ""), ("-n", "{}/-n"), ("a\tb", "{}/a\tb")],
)
def test_make_absolute_normalizes_path(bash, place, given, expected):
    assert bash('X=$1; make_absolute X; printf %s "$X"', given).out == expected.replace("{}", str(place))


def test_module_is_no_path(bash, place):
    code = """USE_CONTAINER=1; check_image() { :; }; SLIPWAY_SCRIPT='-m package.train'; make_absolute SLIPWAY_SCRIPT
        echo "$SLIPWAY_SCRIPT"; check_inputs; bind_paths=(); set_binds; echo "${bind_paths[@]}" """
    assert bash(code).out == f"-m package.train\n{place}\n"


def test_variables_exported_by_parent_job_are_unset(bash):
    code = 'export_to_ranks A=1 B="two words" C="x y=z" E=5; export D=4 E=6; bash -c "$1" 2>&1'
    start = START.format(scheduler="slurm", runtime="apptainer", lib=LIB)
    child = f'{start}unset_parent_job_variables; echo "${{A-}}.${{B-}}.${{C-}}.${{D-}}.${{E-}}.${{SLIPWAY_EXPORTED-}}"'
    assert bash(code, child).out == "...4.6.\n"


def test_damaged_list_of_exported_variables_is_not_executed(bash):
    listed = "A=1\n=2\nB\n1C=3\na[$(touch executed)]=4\nPATH\n\nD=x"
    code = 'unset_parent_job_variables; echo "${A-}.${B-}.${D-}"; ls'
    assert bash(code, A="1", B="", D="x", SLIPWAY_EXPORTED=listed)[:2] == (0, "..\ndisk\nrun\n")


def test_settings_of_submission_are_logged(bash):
    err = bash("log_settings", SLIPWAY_STAGE="1", SLIPWAY_DATA="a b", SLIPWAY_ARGS="").err
    assert re.findall(r"SLIPWAY_\S+", err) == ["SLIPWAY_STAGE='0'"]


def test_slurm_job_with_export_none_gives_warning(bash):
    assert bash("log_missing_environment", scheduler="pbs", SLURM_EXPORT_ENV="NONE") == (0, "", "")
    assert_warning(bash("log_missing_environment", SLURM_EXPORT_ENV="NONE").err, "environment-left", "--export=NONE")


def test_is_exported_detects_exported_variables(bash):
    ask = "export A=; B=1; for n in A B C; do ! is_exported $n || echo $n; done"
    assert bash(ask)[1] == "A\n"


def test_settings_to_save_lists_set_and_kept_settings(bash):
    assert bash("settings_to_save", SLIPWAY_IMAGE="x")[1].split().count("SLIPWAY_IMAGE") == 1
    out = bash("kept_settings=(SLIPWAY_DEVICE); settings_to_save", SLIPWAY_STAGE="0", SLIPWAY_OUTPUT="x")[1]
    assert out.split() == ["SLIPWAY_IMAGE", "SLIPWAY_VENV", "SLIPWAY_CONFIG", "SLIPWAY_DEVICE", "SLIPWAY_STAGE"]


@pytest.mark.parametrize(
    ("call", "out"),
    [("load_modules 1 a/1 'b c'", "purge\nload a/1 b c\n"), ("load_modules 0 a", "load a\n")],
)
def test_modules_are_purged_and_loaded_in_order(bash, call, out):
    assert bash(MODULE + call, programs={"scontrol": ""})[:2] == (0, out)
