"""Settings: one-line refusals before anything is executed, and variables that a parent job exported."""

import re
import subprocess
from pathlib import Path

import pytest

from messages import assert_error, assert_warning, slugs
from slipway.base import contract
from stubs import DONE, SCRIPTS, make_project, option_of

ARITHMETIC = "a[$(touch executed)]"
BAD = ["abc", "0", "-1", ARITHMETIC, "", "yes", " 1", "1\n2", "x\ny", "1e3", "08", "9" * 30]
TRAINING = [name for name in contract.SETTINGS if name not in contract.BUILD_SETTINGS]
SCRIPT_SETTINGS = {
    name: re.findall(r'(?m)^: "\$\{(\w+):=', (SCRIPTS / name).read_text()) for name in ("ddp.job", "ddp.pbs", "ddp.sh")
}


CHECK = f"""set -euo pipefail
script_name=x scheduler=local
source "{SCRIPTS}/lib/local.bash"
for value in "${{@:2}}"; do
    code=0
    said=$(printf -v "$1" %s "$value" && check_setting "$1" 2>&1) || code=$?
    printf '%s\\0%s\\0' "$code" "$said"
done
"""


@pytest.mark.parametrize("name", contract.SETTINGS)
def test_invalid_setting_value_gives_one_line_error(project, name):
    """Each value only by the check; whole scripts below."""
    words = ["bash", "-c", CHECK, "-", name, *BAD]
    answers = subprocess.run(words, cwd=project.spool, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    for value, code, said in zip(BAD, answers[::2], answers[1::2], strict=False):
        if contract.refusal(name, value) and name != "SLIPWAY_ARGS":
            assert (code, len(said.splitlines())) == ("78", 1), value
            assert_error(said, "bad-value", name, contract.SETTINGS[name].kind.expected)
        else:
            assert (code, said) == ("0", ""), value
    assert list(project.spool.glob("exec*")) == []


ASKED = {".job": [["scontrol", "--details", "show", "job", "4711"]], ".pbs": [["qstat", "-f", "4711.head"]], ".sh": []}
"""Queries of a script before it checks its settings: which job it is."""


def worst(name):
    """Return the most harmful of the values that the setting cannot have."""
    bad = [value for value in BAD if value and contract.refusal(name, value)]
    return ARITHMETIC if ARITHMETIC in bad else bad[0]


@pytest.mark.parametrize(
    ("script", "name"),
    [
        *(("ddp.job", name) for name in TRAINING if any(contract.refusal(name, value) for value in BAD if value)),
        *((script, "SLIPWAY_RANKS_PER_NODE") for script in ("ddp.pbs", "ddp.sh", "single.job", "horovod.job")),
        *((script, "SLIPWAY_PREFLIGHT_SECONDS") for script in ("ddp.pbs", "ddp.sh", "single.job", "horovod.job")),
    ],
)
def test_invalid_value_ends_script_before_anything_runs_or_is_written(project, script, name):
    before = sorted(project.folder.rglob("*"))
    ended = project.run(script, **{name: worst(name)})
    # regression: SLIPWAY_LIB="1\n2" got a two-line error
    ended.assert_refused("bad-value" if name != "SLIPWAY_LIB" else "no-library", name)
    assert ended.calls == ASKED[Path(script).suffix]
    assert sorted(project.folder.rglob("*")) == before


def test_empty_setting_has_default_value(project):
    empty = dict.fromkeys(SCRIPT_SETTINGS["ddp.job"], "") | {"SLIPWAY_LOCAL_DISK": str(project.folder / "disk")}
    ended = project.run("ddp.job", **empty, **DONE)
    assert (ended.code, ended.notes) == (0, [])


def test_path_with_invalid_utf8_is_accepted(project):
    name = b"d\xe4ta".decode(errors="surrogateescape")
    (project.folder / name).mkdir()
    ended = project.run("ddp.job", SLIPWAY_DATA=name, LC_ALL="C.UTF-8", **DONE)
    assert (ended.code, ended.notes) == (0, [])
    assert option_of(ended, "--data-dir") == f"{project.folder}/{name}"


# regression: it ran, and no later attempt did
def test_submission_folder_with_control_character_is_refused(tmp_path):
    project = make_project(tmp_path / "a\tb", tmp_path / "spool")
    for script in ("ddp.job", "ddp.pbs"):
        ended = project.run(script, SLIPWAY_RUN_DIR=None, SLIPWAY_LOCAL_DISK=str(tmp_path))
        assert (ended.code, slugs(ended.err)) == (78, ["bad-value"])
    assert not (project.folder / "runs").exists()


def test_mistyped_setting_gives_warning(project):
    ended = project.run("ddp.job", SLIPWAY_DATE="x", **DONE)
    assert (ended.code, len(ended.notes)) == (0, 1)
    assert_warning(ended.err, "unknown-setting", "SLIPWAY_DATE")


class TestParentJob:
    """A job that is submitted from inside a job: sbatch passes that job's whole environment on."""

    @pytest.fixture(params=["ddp.job", "horovod-srun.job"])
    def parent(self, request, project):
        """Return the environment of another job's rank."""
        ended = project.run(
            request.param, SLIPWAY_DATA="my data", SLURM_JOB_CPUS_PER_NODE="64(x2)", SLIPWAY_OUTPUT="runs", **DONE
        )
        assert ended.code == 0
        return {name: value for name, value in ended.env.items() if not name.startswith(("SLURM_", "STUB_"))}

    def test_exports_of_parent_job_do_not_reach_new_job(self, project, parent):
        ended = project.run("ddp.job", **{**parent, "SLIPWAY_RUN_DIR": None, "SLIPWAY_DATA": None}, **DONE)
        assert (ended.code, ended.notes) == (0, [])
        expected = {"DATA": "", "OMP_NUM_THREADS": "4", "MASTER_PORT": "24711", "TRAINER_ATTEMPT": "1"}
        expected["RUN_DIR"] = str(project.folder / "runs" / "ddp-4711")
        assert {name: ended.env[name] for name in expected} == expected
        # regression: a value of several lines (srun --mpi=list) is not found again in SLIPWAY_EXPORTED
        assert ended.env.keys() & {"HOROVOD_RANK", "TRAINER_MPI"} == set()

    def test_variables_set_by_user_reach_new_job(self, project, parent):
        own = {"MASTER_PORT": "4444", "OMP_NUM_THREADS": "3", "SLIPWAY_RUN_DIR": str(project.folder / "mine")}
        ended = project.run("ddp.job", **{**parent, **own}, **DONE)
        assert ended.code == 0
        assert (ended.env["MASTER_PORT"], ended.env["OMP_NUM_THREADS"]) == ("4444", "3")
        assert ended.env["RUN_DIR"] == str(project.folder / "mine")
        ended = project.run("ddp.job", **{**parent, "RUN_DIR": "/elsewhere"}, **DONE)
        assert (ended.code, ended.env["RUN_DIR"]) == (0, str(ended.run_dir))

    def test_run_dir_and_args_settings_are_not_exported(self, project, parent):
        assert "SLIPWAY_RUN_DIR" not in parent
        assert "SLIPWAY_ARGS" not in parent
        assert parent["SLIPWAY_OUTPUT"].endswith("runs")


def test_every_setting_pattern_is_anchored():
    for name, row in contract.SETTINGS.items():
        pattern = row.kind.pattern
        assert not pattern or (pattern.startswith("^") and pattern.endswith("$")), name
