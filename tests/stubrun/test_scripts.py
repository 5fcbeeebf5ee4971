"""The committed scripts, run by Bash with stub programs that record their arguments: what they start, and how."""

import json
import os
import platform
import re
import shutil
from pathlib import Path

import pytest

from messages import assert_error, assert_warning, slugs
from slipway.base.flags import read_arguments
from stubs import DONE, JOIN, OUT_OF_TIME, SCRIPTS, USED, WAIT, launches_of, option_of, payload_of, read_env
from trainer.config.schema import schema

HOROVOD = ["horovod-gloo.job", "horovod.job", "horovod-srun.job"]
SLURM = ["ddp.job", "ddp-ranks.job", "ddp-mpirun.job", "split.job", *HOROVOD, "single.job", "cpu.job", "selftest.job"]
ALL = [*SLURM, "ddp.pbs", "horovod.pbs", "split.pbs", "ddp.sh"]
SPLIT = {"split.job", "split.pbs"}
"""Scripts whose ranks use two GPUs each."""
SHAPES = {"ddp.sh": r"1 node x \d+ cores?", "single.job": "1 node x 1 GPU", "cpu.job": "2 nodes x 8 cores"}
"""Usage of those that differ from the others; the device of ddp.sh is auto."""
DIFFERENT = ["ddp.job", "ddp-ranks.job", "horovod-gloo.job", "single.job", "ddp.pbs", "ddp.sh"]
"""One script for each way to start ranks."""


def test_every_committed_script_is_tested():
    trains = {path.name for path in SCRIPTS.glob("*.*") if path.suffix in {".job", ".pbs", ".sh"} and path.is_file()}
    assert trains - {"image_build.job", "venv_build.job", "dask.sh"} == set(ALL)  # dask.sh: TestDask, tests/cluster


@pytest.mark.parametrize("script", ALL)
def test_successful_run_prints_no_messages_and_passes_arguments(project, script):
    ended = project.run(script, "--epochs", "a b", **DONE)
    assert (ended.code, ended.notes) == (0, [])
    words = payload_of(ended)
    config = "split-toy.toml" if script in SPLIT else "digits.toml"
    assert option_of(ended, "-m") == "trainer"
    assert option_of(ended, "trainer") == str(project.folder / "configs" / config)
    assert option_of(ended, "--output-dir") == str(ended.run_dir)
    assert words[-2:] == ["--epochs", "a b"]
    assert read_arguments([*words[words.index("trainer") + 1 : -2]], schema()).tables["launch"]["resume"] == "auto"
    assert ("--selftest" in words) == (script == "selftest.job")
    # the plan
    ranks = {"single.job": 1, "ddp.sh": 2}.get(script, 2 if script in SPLIT else 4)
    assert ended.env["DEVICES_PER_RANK"] == ("2" if script in SPLIT else "1")
    assert ("--devices-per-rank" in words) == (script in SPLIT)
    assert (ended.env["TRAINER_WORLD_SIZE"], ended.env["TRAINER_ATTEMPT"]) == (str(ranks), "1")
    assert (ended.env["RUN_DIR"], ended.env["PYTHONNOUSERSITE"]) == (str(ended.run_dir), "1")
    assert ended.env["PYTHONSAFEPATH"] == "1"
    assert ended.env["SPT_NOENV"] == "1", "setproctitle overwrote the environment that identifies ranks"
    assert "PYTHONPATH" not in ended.env
    # what is left
    assert project.on_disk() == []
    left = sorted(path.name for path in ended.run_dir.iterdir())
    assert left == ["goodput.jsonl", "input.toml", "job.sh", "lib", "logs", "verdict.1"]
    assert {"code", "job", "stderr.log"} <= {path.name for path in (ended.run_dir / "logs/1").iterdir()}
    assert not (ended.run_dir / "logs/1/scratch").exists()
    assert (ended.run_dir / "logs" / "1" / "code").read_text() == "0\n"
    # what it has used
    [line] = USED.findall(ended.err)
    shape = SHAPES.get(script, "2 nodes x 2 GPUs")
    idle = "; .*4 .*GPUs .*" if script == "cpu.job" else ""  # whatever this scheduler stub provides
    unit = "core" if "core" in shape else "GPU"
    assert re.fullmatch(rf"{script}: .*{shape} x \d+ s = \d+\.\d+ {unit}-hours{idle}", line), line
    kept = json.loads((ended.run_dir / "logs" / "1" / "account.json").read_text())
    assert (kept["unit"], kept["gpus_seen"]) == (unit, 0)


@pytest.mark.parametrize("script", DIFFERENT)
class TestLaunch:
    def test_command_without_container_differs_only_by_prefix(self, project, script):
        shared = {"SLIPWAY_RUN_DIR": str(project.folder / "run"), "MASTER_PORT": "4444", **DONE}
        inside = project.run(script, **shared)
        shutil.rmtree(inside.run_dir)
        outside = project.run(script, **shared, USE_CONTAINER="0")
        ended = [payload_of(inside), payload_of(outside)]
        words = [[word for word in words if not word.startswith(("--log-dir=", "--rdzv-id="))] for words in ended]
        assert words[0] == words[1]
        assert outside.of("apptainer") == []
        assert outside.env["PATH"].startswith(f"{project.folder}/.venv/bin:")

    def test_conda_environment_is_activated(self, project, script):
        conda = project.folder / "conda"
        (conda / "conda-meta").mkdir(parents=True)
        shutil.copytree(project.folder / ".venv" / "bin", conda / "bin", symlinks=True)
        (conda / "etc" / "conda" / "activate.d").mkdir(parents=True)
        (conda / "etc" / "conda" / "activate.d" / "proj.sh").write_text(
            'export PROJ_DATA=$CONDA_PREFIX/share/proj PROJ_BEFORE="$PROJ_DATA"\n'
        )
        ended = project.run(script, USE_CONTAINER="0", SLIPWAY_VENV="conda", **DONE)
        assert (ended.code, ended.notes) == (0, [])
        assert (ended.env["CONDA_PREFIX"], ended.env["PROJ_DATA"]) == (str(conda), f"{conda}/share/proj")

    def test_container_mounts_use_same_paths(self, project, script):
        launch = project.run(script, SLIPWAY_DATA="my data", **DONE)
        words = launch.of("apptainer")[-1]
        mounts = [words[number + 1] for number, word in enumerate(words) if word == "--mount"]
        folder = project.folder
        for path in (folder, launch.run_dir, folder / "my data", folder / "configs" / "digits.toml", folder / "disk"):
            quoted = str(path).replace('"', '""')
            assert f'type=bind,"source={quoted}","destination={quoted}"' in mounts
        assert f"--pwd={folder}" in words
        assert str(folder / "slipway.sif") in words
        assert launch.env["DATA"] == str(folder / "my data")

    def test_user_script_replaces_trainer_and_sets_exit_code(self, project, script):
        ended = project.run(script, "--lr", "1", SLIPWAY_SCRIPT="my train.py/", STUB_CODE="7")
        assert ended.code == 7
        own = [words for words in ended.calls if words[-2:] == ["--lr", "1"]][-1]
        assert own[-3:] == [str(project.folder / "my train.py"), "--lr", "1"]
        assert "PYTHONSAFEPATH" not in ended.env
        assert ended.env["GPUS_PER_NODE"] == {"ddp.sh": "0", "single.job": "1"}.get(script, "2")
        assert not ended.requeued

    def test_container_gets_gpus_unless_device_is_cpu(self, project, script):
        assert "--nv" in project.run(script, SLIPWAY_DEVICE="cuda", **DONE).of("apptainer")[-1]
        assert "--nv" not in project.run(script, SLIPWAY_DEVICE="cpu", **DONE).of("apptainer")[-1]

    def test_staged_files_are_used_and_removed(self, project, script):
        """Data and image may have the same name."""
        data = project.folder / "my data" / "slipway.sif"
        data.mkdir()
        (data / "x").write_text("x")
        data.chmod(0o555)  # shared data often are
        see = 'while [ "$1" != --data-dir ]; do shift; done; cp -- "$2/x" "$STUB_LOG.x"'
        ended = project.run(script, SLIPWAY_STAGE="1", SLIPWAY_DATA="my data/slipway.sif", STUB_ON_TRAIN=see, **DONE)
        assert (ended.code, len(ended.notes)) == (0, 1)
        used = [word for word in ended.of("apptainer")[-1] if word.endswith("/slipway.sif")]
        assert [Path(word).name for word in used] == ["slipway.sif"] * 2
        assert all(word.startswith(f"{project.folder}/disk/slipway-") for word in used)
        assert Path(f"{project.log}.x").read_text() == "x"
        assert project.on_disk() == []


MAKES = """#!/bin/bash
printf '%s\\n' "$1" "$VARIANT" "$WHEELHOUSE" >"$STUB_LOG.setup"
mkdir -p "$VENV/bin" && ln -s "$(dirname "$(type -P srun)")"/* "$VENV/bin"
"""
"""A build/setup that makes an environment of stubs."""


def test_local_environment_is_made_used_and_removed_with_job(project):
    (project.folder / "build").mkdir()
    (project.folder / "build" / "setup").write_text(MAKES)
    (project.folder / "build" / "setup").chmod(0o755)
    (project.folder / "wheels").mkdir()
    wheels = {"SLIPWAY_WHEELHOUSE": "wheels", "SLIPWAY_VARIANT": "cpu"}
    ended = project.run("cpu.job", USE_CONTAINER="0", SLIPWAY_VENV="local", **wheels, **DONE)
    assert (ended.code, ended.notes) == (0, [])
    assert Path(f"{project.log}.setup").read_text() == f"train\ncpu\n{project.folder}/wheels\n"
    assert re.match(re.escape(f"{project.folder}/disk/slipway-4711.") + "[0-9a-f]{16}/venv/bin:", ended.env["PATH"])
    assert project.on_disk() == []


@pytest.mark.parametrize("script", ["ddp.job", "ddp.pbs", "ddp.sh"])
class TestRefusals:
    """With a one-line error and exit code 78, before anything has been written."""

    @pytest.fixture(autouse=True)
    def nothing_written(self, project):
        before = sorted(project.folder.rglob("*"))
        yield
        assert sorted(project.folder.rglob("*")) == before

    @pytest.mark.parametrize(
        ("name", "slug"),
        [
            ("IMAGE", "no-image"),
            ("CONFIG", "no-script"),
            ("DATA", "no-data"),
            ("SCRIPT", "no-script"),
            ("LOCAL_DISK", "no-local-disk"),
        ],
    )
    def test_missing_path_is_refused(self, project, script, name, slug):
        ended = project.run(script, **{f"SLIPWAY_{name}": "missing"})
        ended.assert_refused(slug, f"SLIPWAY_{name}", f"{project.folder}/missing")
        assert ended.err.startswith(f"{script}: ")

    def test_missing_environment_is_refused(self, project, script):
        ended = project.run(script, USE_CONTAINER="0", SLIPWAY_VENV="missing")
        ended.assert_refused("no-environment", "SLIPWAY_VENV", f"{project.folder}/missing/bin/python")

    def test_missing_library_is_refused(self, project, script, tmp_path):
        copy = tmp_path / script
        shutil.copy(SCRIPTS / script, copy)
        ended = project.run(copy)
        ended.assert_refused("no-library", "/jobscripts/lib'", "SLIPWAY_LIB")
        assert ended.err.startswith(f"{script}: ")


FAILS = "case $* in *{}*) {} ;; esac"
NO_HOSTS = FAILS.format('"show hostnames"', "exit 1")
NODE_3 = "gpu:2(IDX:0-1)\n   Nodes=node3 CPU_IDs=0-7 Mem=0 GRES=gpu:1(IDX:0)"
UNEVEN = "echo ' exec_host = n1/0+n2/0'; echo ' exec_vnode = (n1:ngpus=3)+(n2:ngpus=1)'"


@pytest.mark.parametrize(
    ("script", "env", "slug", "values"),
    [
        # regression: two ranks were started on the node with one GPU
        ("ddp.job", {"STUB_GRES": NODE_3}, "uneven-gpus", []),
        ("ddp.pbs", {"STUB_ON_QSTAT": UNEVEN}, "uneven-gpus", []),
        ("ddp.job", {"SLURM_GPUS_ON_NODE": None}, "no-gpu", []),
        ("ddp.job", {"SLURM_HET_SIZE": "2", "STUB_HET": "4711"}, "heterogeneous-job", [2]),
        ("ddp.job", {"STUB_NODES": ""}, "no-nodes", ["scontrol", "node[1-2]"]),
        ("ddp.job", {"STUB_ON_SCONTROL": NO_HOSTS}, "no-nodes", ["scontrol", "node[1-2]"]),
        # regression: it trained on the only node that scontrol had named
        ("ddp.job", {"SLURM_JOB_NUM_NODES": "2", "STUB_NODES": "node1"}, "no-nodes", [1, 2, "node[1-2]"]),
        ("ddp.job", {"SLIPWAY_SPARES": "2"}, "too-few-nodes", ["SLIPWAY_SPARES=2", " 2 "]),
        ("ddp.pbs", {"PBS_NODEFILE": "/dev/null"}, "no-nodes", ["/dev/null"]),
        ("ddp.pbs", {"STUB_WALLTIME": "00:01:59"}, "time-too-short", [" 120 s "]),
        ("ddp.pbs", {"PBS_O_WORKDIR": "/gone/x"}, "cannot-read", ["/gone/x", platform.node()]),
        ("ddp.job", {"SLURM_SUBMIT_DIR": "/gone"}, "cannot-read", ["/gone", platform.node()]),
        ("ddp.job", {"SLIPWAY_ARGS": "--epochs 3"}, "misplaced-arguments", ["SLIPWAY_ARGS"]),
        ("ddp.sh", {"SLIPWAY_ARGS": "--epochs 3"}, "misplaced-arguments", ["SLIPWAY_ARGS"]),
        ("ddp.job", {"SLIPWAY_DEVICE": "gpu"}, "bad-value", ["SLIPWAY_DEVICE", "'gpu'"]),
        ("ddp.job", {"BACKEND": "gpu"}, "bad-value", ["BACKEND", "'gpu'"]),
        *(
            ("ddp.job", {"SLIPWAY_NOTIFY": path}, "no-notify-program", [f"SLIPWAY_NOTIFY={path} "])
            for path in ("/gone", "/", "/etc/passwd")
        ),
        ("ddp.job", {"SLIPWAY_DATA": "a\nb"}, "bad-value", ["SLIPWAY_DATA", "$'a\\nb'"]),
    ],
)
def test_invalid_job_is_refused_before_run_folder_is_created(project, script, env, slug, values):
    ended = project.run(script, **env)
    ended.assert_refused(slug, *values)
    assert not ended.run_dir.exists()


OWN = {"SLIPWAY_SCRIPT": "my train.py"}
LOSES_COMMAND = "echo bye; exit 0"
LOSES_CODE = 'shift $(($# - 3)); "$@" || :; echo bye; exit 0'
NO_MPI = {"STUB_ON_MPIRUN": 'echo "no libmpi" >&2; exit 127'}
NO_SERVER = {"STUB_ON_PYTHON3": FAILS.format("/horovod_server.py", "exit 1")}
NO_FOLDER = {"STUB_ON_SRUN": FAILS.format("/make_folder.sh", 'echo "mkdir: no space" >&2; exit 1')}
NO_PORT = {"STUB_ON_PORT": 'echo "free_port.py: no port" >&2; exit 1'}


@pytest.mark.parametrize(
    ("script", "env", "slug", "values", "before"),  # the last: output of the program that failed
    [
        *((script, {"STUB_PREFLIGHT": "78"}, "node-not-ready", [], []) for script in DIFFERENT),
        # regression: `rendezvous at ...:bye`, and a user's script that never ran ended with 0
        *(
            (script, {**OWN, "STUB_ON_APPTAINER": loses}, "bad-entry-point", ["slipway.sif"], [])
            for script in ("ddp.job", "single.job", "ddp.pbs", "horovod-gloo.job", "ddp.sh")
            for loses in (LOSES_COMMAND, LOSES_CODE)
        ),
        ("ddp.job", {"STUB_ADDRESS": "127.0.1.1"}, "no-master-address", ["node1", "127.0.1.1"], []),
        ("ddp.job", {"STUB_ADDRESS": "::1"}, "no-master-address", ["node1", "::1"], []),
        ("horovod.job", NO_MPI, "no-mpi", ["mpirun", "no libmpi", "horovod-gloo", platform.node()], []),
        ("horovod-gloo.job", NO_SERVER, "no-rendezvous", [], []),
        ("ddp.job", NO_FOLDER, "cannot-write", ["/disk"], ["mkdir: no space"]),
        ("ddp.job", NO_PORT, "no-free-port", ["node1"], ["free_port.py: no port"]),
    ],
)
def test_failure_on_nodes_ends_job_before_launch(  # noqa: PLR0917 -- the columns
    project, script, env, slug, values, before
):
    ended = project.run(script, **env)
    assert (ended.code, launches_of(ended), project.on_disk()) == (78, [], [])
    assert_error(ended.err, slug, *values)
    assert ended.notes[:-1] == before


@pytest.mark.parametrize(
    ("script", "given", "found"),
    [
        # regression: under srun all ranks had the first node's
        ("ddp.job", {"HOSTNAME": "n7"}, {"HOSTNAME": None}),
        ("single.job", {"HOSTNAME": "n7", "STUB_NODES": "node1"}, {"HOSTNAME": "n7"}),
        ("ddp.sh", {"HOSTNAME": "n7"}, {"HOSTNAME": "n7"}),
        # ranks get more than a second to save
        ("ddp-mpirun.job", {}, {"OMPI_MCA_odls_base_sigkill_timeout": "15"}),
        ("ddp-mpirun.job", {}, {"PRTE_MCA_prte_launch_agent": "env --block-signal=TERM prted"}),
        ("ddp.pbs", {"BACKEND": "horovod"}, {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"}),
        ("ddp.sh", {"BACKEND": "horovod"}, {"HOROVOD_SIZE": "2"}),
        # GPUs and cores come from the PBS server's record, otherwise from the directives; ranks share a node's cores
        ("ddp.pbs", {"STUB_NGPUS": "8"}, {"TRAINER_RANKS_PER_NODE": "4"}),
        ("ddp.pbs", {}, {"TRAINER_RANKS_PER_NODE": "2"}),
        ("split.pbs", {"STUB_NGPUS": "8"}, {"TRAINER_RANKS_PER_NODE": "2", "DEVICES_PER_RANK": "2"}),
        ("split.pbs", {}, {"TRAINER_RANKS_PER_NODE": "1"}),
        ("ddp.pbs", {"STUB_NCPUS": "10"}, {"OMP_NUM_THREADS": "2"}),
        ("ddp.pbs", {"PBS_NUM_PPN": "6"}, {"OMP_NUM_THREADS": "3"}),
        ("ddp.pbs", {"STUB_NCPUS": "a[$(id)]"}, {"OMP_NUM_THREADS": "4"}),
    ],
)
def test_rank_environment_variables_by_script(project, script, given, found):
    ended = project.run(script, **given, **DONE)
    assert ended.code == 0
    assert {name: ended.env.get(name) for name in found} == found


class TestLibraryLookup:
    @pytest.fixture
    def spooled(self, tmp_path):
        """Return what Slurm runs: a copy of the script in a folder without a library."""
        copy = tmp_path / "job04711" / "slurm_script"
        copy.parent.mkdir()
        shutil.copy(SCRIPTS / "ddp.job", copy)
        return copy

    @pytest.fixture
    def library(self, project):
        """Return a copy of the library whose functions print where they come from."""

        def library(folder):
            shutil.copytree(SCRIPTS / "lib", folder)
            (folder / "slurm.bash").open("a").write('log "from ${BASH_SOURCE[0]}"\n')
            return folder

        return library

    def test_slipway_lib_setting_has_precedence(self, project, spooled, library):
        library(project.folder / "jobscripts" / "lib")
        lib = library(project.folder / "site wide")
        ended = project.run(spooled, SLIPWAY_LIB="site wide", **DONE)
        assert (ended.code, ended.notes) == (0, [f"ddp.job: from {lib}/slurm.bash"])

    ALL_TASKS = (
        '[ "$*" != "--details show job 4700" ] || { printf "JobId=%s ArrayJobId=4700 ArrayTaskId=%s JobName=x\\n'
        '   GRES=gpu:2(IDX:0-1)\\n   Command=%s\\n\\n" 4701 2 /none 4700 3 "$STUB_COMMAND"; exit; }'
    )
    """`scontrol show job 4700` shows all tasks of the array 4700; one of them has the array's own number."""
    TASK = {"SLURM_JOB_ID": "4700", "SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"}

    @pytest.mark.parametrize(
        ("arguments", "env"),
        [((), {}), (("--data-dir", "/a b/c", "--lib", "x y/z"), {}), ((), {**TASK, "STUB_ON_SCONTROL": ALL_TASKS})],
        ids=["plain", "arguments", "array"],
    )
    def test_library_next_to_submitted_script_is_used(self, project, spooled, library, arguments, env):
        lib = library(project.folder / "my scripts" / "lib")
        library(project.folder / "jobscripts" / "lib")
        command = " ".join([str(lib.parent / "ddp.job"), *arguments])
        ended = project.run(spooled, *arguments, STUB_COMMAND=command, **env, **DONE)
        assert (ended.code, ended.notes) == (0, [f"ddp.job: from {lib}/slurm.bash"])

    @pytest.mark.parametrize("broken", ["exit 1", "sleep 60", "exit 0"])
    def test_library_in_submission_folder_is_used_if_scontrol_fails(self, project, spooled, library, broken):
        lib = library(project.folder / "jobscripts" / "lib")
        script = spooled.read_text().replace("limit=60", "limit=0.5").replace("= 60 ]", "= 0.5 ]")
        spooled.write_text(script)
        wrong = f'case $* in "--details show job"*) {broken} ;; esac'
        ended = project.run(spooled, STUB_ON_SCONTROL=wrong, **DONE)
        assert (ended.code, ended.notes[0], slugs(ended.err)) == (
            0,
            f"ddp.job: from {lib}/slurm.bash",
            ["scheduler-silent"],
        )

    # regression: without an answer it was looked for in /lib, and by the name of a pipe, (null), in the current folder
    @pytest.mark.parametrize(
        "said",
        [{"STUB_ON_SCONTROL": '[ "$1" != --details ] || exit 1'}, {"STUB_COMMAND": "(null)"}],
        ids=["silent", "pipe"],
    )
    def test_library_next_to_spooled_script_is_used_without_command(self, project, spooled, library, said):
        library(project.folder / "(null)" / "lib")
        lib = library(spooled.parent / "lib")
        ended = project.run(spooled, **said, **DONE)
        assert (ended.code, ended.notes[0]) == (0, f"ddp.job: from {lib}/slurm.bash")

    def test_library_next_to_symlink_target_is_used(self, project, spooled, library):
        lib = library(project.folder / "clone" / "lib")
        library(project.folder / "lib")  # beside the link
        (lib.parent / "ddp.job").touch()
        (project.folder / "my.job").symlink_to("clone/ddp.job")
        ended = project.run(spooled, STUB_COMMAND=str(project.folder / "my.job"), **DONE)
        assert (ended.code, ended.notes[0]) == (0, f"ddp.job: from {lib}/slurm.bash")

    # regression: ${script%/*} of a name without a slash is that name
    def test_library_next_to_script_started_by_bare_name_is_used(self, project):
        shutil.copytree(SCRIPTS / "lib", project.folder / "my scripts" / "lib")
        shutil.copy(SCRIPTS / "ddp.sh", project.folder / "my scripts")
        (project.folder / "my scripts" / "configs").symlink_to("../configs")
        ended = project.run(
            "/bin/bash", "ddp.sh", cwd=project.folder / "my scripts",
            SLIPWAY_IMAGE="../slipway.sif", **DONE,
        )  # fmt: skip
        assert (ended.code, ended.notes) == (0, [])

    # regression: Slurm goes to /tmp if the submission folder is missing, and any user can put a library there
    def test_library_outside_submission_folder_is_not_used(self, project, tmp_path):
        copy = tmp_path / "slurm_script"
        shutil.copy(SCRIPTS / "ddp.job", copy)
        planted = project.folder / "jobscripts" / "lib"
        planted.mkdir(parents=True)
        (planted / "slurm.bash").write_text("touch planted\n")
        ended = project.run(copy, SLURM_SUBMIT_DIR="/gone")
        ended.assert_refused("no-library", "'/gone/jobscripts/lib'")
        assert not (project.folder / "planted").exists()


NAMED = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "24711",
}


class TestRanks:
    def test_srun_ranks_have_torch_rank_variables(self, project):
        env = project.run("ddp-ranks.job", **DONE).env
        assert {name: env.get(name) for name in NAMED} == NAMED

    @pytest.mark.parametrize(
        ("script", "own", "ranks", "each", "meeting_point"),
        [
            ("ddp.job", {}, 4, 2, "10.0.0.1:24711"),
            ("ddp.job", {"SLIPWAY_SCRIPT": "my train.py"}, 4, 2, "10.0.0.1:24711"),
            ("ddp-ranks.job", {}, 4, 2, "10.0.0.1:24711"),
            ("horovod-gloo.job", {}, 4, 2, "10.0.0.1:54321"),
            ("horovod.job", {}, 4, 2, ""),
            ("single.job", {}, 1, 1, ""),
            ("ddp.pbs", {}, 4, 2, "10.0.0.1:24711"),
        ],
    )
    def test_rank_plan_is_logged_before_launch(  # noqa: PLR0917 -- the columns
        self, project, script, own, ranks, each, meeting_point
    ):
        nodes = r"2 node.*\(node1, node2\)" if script != "single.job" else r"1 node.*\(node1\)"
        line = rf"{script}: {ranks} rank.* {each} .*{nodes}(, .* )?{re.escape(meeting_point)}"
        ended = project.run(script, STUB_ON_TRAIN="echo trains >&2", **own, **DONE)
        before = ended.err.partition("\ntrains\n")[0].splitlines()
        assert [said for said in before if re.fullmatch(line, said)] != [], ended

    # regression: each of them trained, in one run folder
    @pytest.mark.parametrize(("site", "slurm"), [("example", True), ("pbs", False), ("torque", False)])
    def test_single_script_on_two_nodes_is_refused(self, project, site, slurm):
        script = project.render("single", site, "modules=[]")
        two = {"SLURM_JOB_NODELIST": "node[1-2]", "STUB_NODES": "node1 node2"}
        before = sorted(project.folder.rglob("*"))
        project.run(script, **two).assert_refused("too-many-nodes", 2)
        assert sorted(project.folder.rglob("*")) == before
        if slurm:  # the second one waits
            ended = project.run(script, **two, SLIPWAY_SPARES="1", **DONE)
            assert (ended.code, ended.env["TRAINER_WORLD_SIZE"]) == (0, "1"), ended

    def test_rank_count_follows_gpus_or_setting(self, project):
        for given, ranks in (({"SLURM_GPUS_ON_NODE": "4"}, "4"), ({"SLIPWAY_RANKS_PER_NODE": "1"}, "1")):
            assert f"--nproc-per-node={ranks}" in payload_of(project.run("ddp.job", **given, **DONE))

    @pytest.mark.parametrize(
        ("cpus", "threads"), [("5(x2)", "2"), ("64(x2)", "32"), ("8(x2),4", "2"), ("16,5(x3)", "2"), ("1(x2)", "1")]
    )
    def test_omp_num_threads_is_share_of_smallest_node_cores(self, project, cpus, threads):
        ended = project.run("ddp.job", SLURM_JOB_CPUS_PER_NODE=cpus, **DONE)
        assert ended.env["OMP_NUM_THREADS"] == threads

    def test_preset_omp_num_threads_is_kept_with_warning(self, project):
        ended = project.run("ddp.job", OMP_NUM_THREADS="1", **DONE)
        assert ended.env["OMP_NUM_THREADS"] == "1"
        assert len(ended.notes) == 1
        assert_warning(ended.err, "kept-variable", "OMP_NUM_THREADS=1", 4)

    @pytest.mark.parametrize("script", ["ddp.job", "ddp-ranks.job", "ddp-mpirun.job"])
    def test_preset_master_addr_and_port_are_kept(self, project, script):
        env = project.run(script, MASTER_ADDR="head-ib0", MASTER_PORT="4444", **DONE).env
        assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("head-ib0", "4444")


class TestPort:
    def test_port_in_use_is_replaced_by_next_port(self, project):
        ended = project.run("ddp.job", STUB_PORTS="2", **DONE)
        assert ended.code == 0
        words = [word for words in ended.of("torchrun") for word in words]
        points = [
            word.rpartition(":")[2].rpartition("=")[2] for word in words if "port=" in word or "endpoint=" in word
        ]
        assert points == ["24711", "24712", "24713"]

    def test_user_set_port_is_not_changed(self, project):
        ended = project.run("ddp.job", STUB_PORTS="2", MASTER_PORT="4444", **DONE)
        assert (ended.code, len(ended.of("torchrun"))) == (1, 1)


@pytest.mark.parametrize("script", ["ddp.job", "horovod-gloo.job", "ddp.sh"])
def test_output_of_image_entry_point_is_not_an_answer(project, script):
    quiet = project.run(script, **DONE)
    ended = project.run(script, STUB_ON_APPTAINER="echo 4; printf '7\\0end\\0'", **DONE)
    names = {"MASTER_ADDR", "MASTER_PORT", "HOROVOD_GLOO_RENDEZVOUS_PORT", "TRAINER_WORLD_SIZE"}
    if script == "ddp.sh":
        names -= {"MASTER_PORT"}  # it differs from run to run
    assert (ended.code, ended.notes) == (0, [])
    assert {name: ended.env.get(name) for name in names} == {name: quiet.env.get(name) for name in names}
    assert ended.env.get("MASTER_PORT") not in {"4", "7"}


class TestHorovod:
    NAMES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME")

    @pytest.mark.parametrize(("script", "backend"), [("horovod-gloo.job", None), ("ddp.job", "horovod")])
    def test_ranks_are_numbered_and_use_server_on_first_node(self, project, script, backend):
        # as with sbatch --ntasks-per-node=1 --cpus-per-task=8 in ddp.job: srun takes both from here, too
        env = {"SLURM_NTASKS_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "8", "BACKEND": backend}
        ended = project.run(script, **env, **DONE)
        assert ended.code == 0
        assert [ended.env[f"HOROVOD_{name}"] for name in self.NAMES] == ["1", "4", "1", "2", "0", "2", "0"]
        assert ended.env["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1"
        assert ended.env["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "54321"
        server = next(words for words in ended.of("python3") if words[1].endswith("/horovod_server.py"))
        assert server[3:] == ["10.0.0.1", "2", "2"]
        launch = next(words for words in launches_of(ended) if words[0] == "srun")
        own = launch[: launch.index("sh")]
        assert {"--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=4", "--gres=gpu:2"} <= set(own)
        assert "--export=ALL" in own
        assert payload_of(ended)[payload_of(ended).index("--backend") + 1] == "horovod"

    def test_mpi_ranks_get_only_trainer_mpi_variable(self, project):
        env = project.run("horovod.job", **DONE).env
        assert env["TRAINER_MPI"] == "mpirun (Open MPI) 4.1.4"
        assert [name for name in env if name.startswith("HOROVOD_") or name == "RANK"] == []

    def test_horovod_srun_script_requests_pmix(self, project):
        ended = project.run("horovod-srun.job", **DONE)
        assert "pmix" in ended.env["TRAINER_MPI"]
        assert "--mpi=pmix" in next(words for words in launches_of(ended) if words[0] == "srun")

    @pytest.mark.parametrize(
        ("script", "backend", "instead"),
        [
            ("horovod.job", "ddp", "ddp"),
            ("single.job", "horovod", "horovod-gloo"),
            ("ddp.job", "single", "single"),
            ("ddp.sh", "single", "single"),
            ("horovod.pbs", "ddp", "ddp"),
        ],
    )
    def test_wrong_backend_is_refused_and_other_script_suggested(self, project, script, backend, instead):
        ended = project.run(script, BACKEND=backend)
        ended.assert_refused("wrong-backend", f"BACKEND={backend}", f"`jobgen render {instead} --site SITE`")
        assert (SCRIPTS / "specs" / f"{instead}.toml").exists()
        assert not ended.run_dir.exists()


class TestInherited:
    """A job that was submitted from inside another one: Slurm's variables about that job are not trusted."""

    ARRAY = {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"}
    SILENT = {"STUB_ON_SCONTROL": FAILS.format('"show job"', "exit 1")}
    WELCOME = {"STUB_ON_SCONTROL": FAILS.format('"show job"', "echo Welcome; exit")}
    ALL_TASKS = (
        'case $* in *"show job 4700") printf "JobId=%s ArrayJobId=4700 ArrayTaskId=%s JobState=%s GRES=gpu:2\\n\\n"'
        " 4700 3 RUNNING 4701 4-9 PENDING; exit ;; esac"
    )
    SEVERAL = {"SLURM_JOB_ID": "4700", "STUB_ON_SCONTROL": ALL_TASKS}
    """`scontrol show job 4700` shows all tasks of the array 4700, one of which has that number."""

    # regression: two tasks' children took the parent's name, trained in one folder, and requeued the parent
    @pytest.mark.parametrize(
        ("answer", "name", "array", "said"),
        [
            ({}, "4700_3", "3", {"requeued"}),
            ({"STUB_ARRAY": ""}, "4711", None, {"requeued"}),
            (SEVERAL, "4700_3", "3", {"requeued"}),
            (SILENT, "4711", "3", {"scheduler-silent", "requeued", "no-requeue"}),
            (WELCOME, "4711", "3", {"scheduler-silent", "requeued", "no-requeue"}),
        ],
        ids=["its own task", "another's", "of all tasks", "silence", "no record"],
    )
    def test_array_task_is_identified_by_slurm_record(self, project, answer, name, array, said):
        ended = project.run("ddp.job", SLIPWAY_RUN_DIR=None, **self.ARRAY, **answer, **OUT_OF_TIME)
        assert [path.name for path in (project.folder / "runs").iterdir()] == [f"ddp-{name}"]
        assert (ended.env["TRAINER_JOB_ID"], ended.env.get("SLURM_ARRAY_TASK_ID")) == (name, array)
        assert set(slugs(ended.err)) == said
        asked = [words[-1] for words in ended.calls if words[:2] == ["scontrol", "requeue"]]
        assert asked == ([] if "no-requeue" in said else [name])

    # regression: it began again, in a folder of another name
    @pytest.mark.parametrize("silent", ["twice", "for good"])
    def test_requeued_array_task_unknown_to_slurm_starts_no_second_run(self, project, tmp_path, silent):
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "sleep").symlink_to("/bin/true")
        path = f"{tmp_path / 'bin'}:{project.environment(Path('ddp.job'))['PATH']}"
        task = {"SLIPWAY_RUN_DIR": None, **self.ARRAY}
        assert project.run("ddp.job", **task, STUB_ON_TRAIN="exit 1").code == 1
        until = 'echo >>"$STUB_LOG.asked"; [ "$(wc -l <"$STUB_LOG.asked")" -gt 2 ] || exit 1'
        answer = f"case $* in *'show job'*) {until if silent == 'twice' else 'exit 1'} ;; esac"
        ended = project.run("ddp.job", **task, SLURM_RESTART_COUNT="1", STUB_ON_SCONTROL=answer, PATH=path, **DONE)
        assert [folder.name for folder in (project.folder / "runs").iterdir()] == ["ddp-4700_3"]
        if silent == "twice":
            assert (ended.code, ended.env["TRAINER_ATTEMPT"]) == (0, "2")
        else:
            ended.assert_refused("scheduler-silent", project.folder / "runs" / "ddp-4700_3" / "job.sh")

    OTHER = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_CPU_BIND_LIST": "0x1", "SLURM_MEM_BIND": "local",
        "SLURM_GPU_BIND": "single:1", "SLURM_TRES_PER_TASK": "cpu:3", "SLURM_MEM_PER_CPU": "10",
        "SLURM_MEM_PER_GPU": "10", "SLURM_MEM_PER_NODE": "10", "SLURM_GPUS": "1", "SLURM_GPUS_PER_NODE": "1",
        "SLURM_GPUS_PER_TASK": "1", "SLURM_CPUS_PER_GPU": "3", "SLURM_CPUS_PER_TASK": "3", "SLURM_STEP_GRES": "none",
        "SRUN_CPUS_PER_TASK": "3", "SLURM_HINT": "nomultithread", "SLURM_NTASKS": "9", "SLURM_NPROCS": "9",
        "SLURM_NTASKS_PER_NODE": "7", "SLURM_NTASKS_PER_GPU": "1", "SLURM_DISTRIBUTION": "cyclic",
        "SLURM_THREADS_PER_CORE": "1", "SLURM_EXCLUSIVE": "", "SLURM_LABELIO": "1", "SLURM_OVERCOMMIT": "1",
        "SLURM_HET_SIZE": "2", "SLURM_RESTART_COUNT": "3", "SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "9",
        "RANK": "3", "WORLD_SIZE": "9", "LOCAL_RANK": "3", "TORCHELASTIC_RUN_ID": "x", "OMPI_COMM_WORLD_RANK": "3",
        "NODE_RANK": "1", "PMI_RANK": "1",
    }  # fmt: skip
    KNOWN = {"STUB_ARRAY": "", "STUB_RESTARTS": "0"}

    # regression: an srun took SLURM_CPU_BIND of another job: all ranks on one core
    @pytest.mark.parametrize("script", ["ddp.job", "single.job"])
    def test_variables_of_parent_job_do_not_reach_steps(self, project, script):
        names = (*self.OTHER, "SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE", "SLURM_GPUS_ON_NODE")
        steps, seen = [], []
        save = 'env --null >"$STUB_LOG.srun"'
        for env in ({}, self.OTHER):
            ended = project.run(script, STUB_ON_SRUN=save, **self.KNOWN, **env, **DONE)
            assert (ended.code, ended.notes) == (0, [])
            inner = read_env(Path(f"{project.log}.srun"))
            seen.append([{name: found[name] for name in names if name in found} for found in (ended.env, inner)])
            launch = next(words for words in launches_of(ended) if words[0] == "srun")
            words = launch[: launch.index("sh")]  # except the step's name, which holds the mark of the run folder
            steps.append([word for word in words if not word.startswith("--job-name=slipway-step-")])
        assert steps[0] == steps[1]
        assert seen[0] == seen[1]
        assert {"--gres=gpu:2" if script == "ddp.job" else "--gres=gpu:1", "--mem=0"} <= set(steps[0])


class TestSeveralGpusPerRank:
    """Ranks of two GPUs each, on nodes of four."""

    NODE = {"SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_CPUS_PER_NODE": "16(x2)"}

    def launch(self, project, site, *settings, **env):
        ended = project.run(project.render("split", site, *settings), **self.NODE, **env, **DONE)
        assert (ended.code, ended.notes) == (0, [])
        return ended, [words for words in launches_of(ended) if words[0] == "srun"]

    def test_rank_count_is_gpus_divided_by_devices_per_rank(self, project):
        ended = project.run("split.job", **self.NODE, **DONE)
        assert "--nproc-per-node=2" in payload_of(ended)
        assert option_of(ended, "--devices-per-rank") == "2"
        names = ("TRAINER_WORLD_SIZE", "GPUS_PER_NODE", "DEVICES_PER_RANK", "OMP_NUM_THREADS")
        assert [ended.env[name] for name in names] == ["4", "4", "2", "8"]

    def test_devices_per_rank_setting_applies_to_any_script(self, project):
        ended = project.run("ddp.job", SLIPWAY_DEVICES_PER_RANK="4", **self.NODE, **DONE)
        assert (ended.env["TRAINER_WORLD_SIZE"], ended.env["OMP_NUM_THREADS"]) == ("2", "16")
        assert "--devices-per-rank" in payload_of(ended)
        ended = project.run("ddp.job", SLIPWAY_DEVICES_PER_RANK="8", **self.NODE)
        ended.assert_refused("too-few-gpus", "1 ", "8 ", "4")
        assert not ended.run_dir.exists()

    def test_per_rank_placement_binds_tasks_to_gpus(self, project):
        ended, [words] = self.launch(project, "gpu-per-task", "placement=per-rank")
        assert {"--gpus-per-task=2", "--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=8"} <= {*words}
        assert ended.env["TRAINER_BOUND_GPUS"] == "2"
        ended, [words] = self.launch(project, "gpu-per-task")  # by torchrun
        assert [word for word in words if word.startswith("--gpu")] == []
        assert "TRAINER_BOUND_GPUS" not in ended.env

    @pytest.mark.parametrize("backend", ["ddp", "horovod"])
    def test_node_by_node_placement_starts_one_step_per_node(self, project, backend):
        see = '[ -z "${NODE_RANK-}" ] || echo "$NODE_RANK $PET_NODE_RANK" >>"$STUB_LOG.nodes"'
        settings = ("gpus_per_node=4", "placement=node-by-node")
        _, launched = self.launch(project, "example", *settings, BACKEND=backend, STUB_ON_SRUN=see)
        launched = [words for words in launched if "--nodes=1" in words]
        assert sorted(word for words in launched for word in words if "nodelist" in word) == [
            "--nodelist=node1",
            "--nodelist=node2",
        ]
        assert all({"--ntasks=1", "--cpus-per-task=16", "--export=ALL"} <= {*words} for words in launched)
        assert sorted(Path(f"{project.log}.nodes").read_text().splitlines()) == ["0 0", "1 1"]


class TestMpirun:
    def test_mpirun_exports_variables_by_name(self, project):
        words = project.run("ddp-mpirun.job", STRANGE="a\n;b", **DONE).of("mpirun")[-1]
        named = {words[number + 1] for number, word in enumerate(words) if word == "-x"}
        assert {"STRANGE", "MASTER_ADDR", "MASTER_PORT", "PATH", "OMP_NUM_THREADS", "TRAINER_WORLD_SIZE"} <= named
        assert [name for name in named if name.startswith("SLURM_")] == []

    def test_site_options_reach_mpirun_and_apptainer(self, project):
        options = ('mpirun_options=["--prefix", "a  b"]', 'container_options=["--env=A=$(id) b"]', "modules=[]")
        ended = project.run(project.render("horovod", "mpirun", *options), **DONE)
        assert (ended.code, ended.notes) == (0, [])
        steps = [words for words in ended.of("mpirun") if words[1:] != ["--version"]]
        assert len(steps) > 2
        for words in steps:
            assert words[words.index("--prefix") + 1] == "a  b"
        assert all("--env=A=$(id) b" in words for words in ended.of("apptainer"))


# regression: ranks inherited 60 names of the library, and job.sh kept every default
@pytest.mark.parametrize("script", ["ddp.job", "ddp.pbs"])
def test_allexport_shell_does_not_export_script_variables(project, script):
    profile = project.spool / "profile"
    profile.write_text("set -a\nMINE=1\n")
    ended = project.run(script, BASH_ENV=str(profile), **OUT_OF_TIME)
    assert ended.code == 75, ended
    assert "taken-name" not in slugs(ended.err)
    assert (ended.env["MINE"], ended.env.keys() & {"attempt", "lib", "log_dir", "scratch", "nodes"}) == ("1", set())
    kept = re.findall(r"(?m)^ *restore_setting (\w+)", (ended.run_dir / "job.sh").read_text())
    assert kept == re.findall(
        r"(?m)^ *restore_setting (\w+)", (project.run(script, **OUT_OF_TIME).run_dir / "job.sh").read_text()
    )


@pytest.mark.parametrize(("script", "backend"), [("ddp.pbs", "ddp"), ("ddp.job", "horovod")])
def test_ranks_inherit_no_pipe_of_script(project, script, backend):
    """An open pipe would keep the time-limit watcher, or Horovod's server, alive."""
    look = 'for fd in /proc/$$/fd/*; do [ "${fd##*/}" -le 2 ] || readlink "$fd" || :; done >>"$STUB_LOG.open"'
    ended = project.run(script, BACKEND=backend, STUB_ON_TRAIN=look, **DONE)
    assert ended.code == 0, ended
    found = Path(f"{project.log}.open").read_text()
    assert "pipe:" not in found


class TestDisks:
    def test_scratch_of_killed_attempt_is_removed_by_next(self, project):
        kill = 'kill -KILL "$STUB_SCRIPT_PID"'
        first = project.run("ddp.job", STUB_ON_TRAIN=kill)
        assert first.code == 137
        [left] = project.on_disk()
        assert re.fullmatch(r"slipway-4711\.[0-9a-f]{16}", left.name)
        assert project.run("ddp.job", SLIPWAY_RUN_DIR=str(first.run_dir), **DONE).code == 0
        assert project.on_disk() == []

    def test_scratch_of_running_job_is_left_unchanged(self, project):
        """A second and a third job start in its run folder; for the third, only the lock shows that the first runs."""
        first = project.start("ddp.job", STUB_ON_TRAIN=f'{WAIT}; ls -d "${{TRITON_CACHE_DIR%/*}}"', **DONE)
        first.until(project.up)
        folder = {"SLIPWAY_RUN_DIR": str(first.run_dir)}
        second = project.run("ddp.job", **folder, SLURM_JOB_ID="4712", STUB_OTHERS="RUNNING")
        unknown = {"STUB_ON_SCONTROL": FAILS.format('"show job 4711"', "exit 1"), "STUB_VERDICT": "failed 0 locked"}
        third = project.run("ddp.job", **folder, SLURM_JOB_ID="4713", **unknown)
        there = len(project.on_disk())
        project.go()
        assert first.end().code == 0
        second.assert_refused("folder-in-use", 4711, first.run_dir)
        assert (third.code, there) == (1, 1)

    @pytest.mark.parametrize("script", ["ddp.job", "ddp.sh"])
    def test_only_run_folder_is_private(self, project, script):
        os.umask(0o022)
        runs = project.folder / "runs"
        for job, mode in (("4711", 0o755), ("4712", 0o2775)):
            assert project.run(script, SLIPWAY_RUN_DIR=None, SLURM_JOB_ID=job, **DONE).code == 0
            assert runs.stat().st_mode & 0o7777 == mode
            assert {path.stat().st_mode & 0o777 for path in runs.iterdir()} == {0o700}
            runs.chmod(0o2775)

    @pytest.mark.skipif(not os.access("/", os.W_OK), reason="needs to write /")
    def test_user_script_in_root_folder_is_accepted(self, project):
        own = Path("/slipway_stubrun_train.py")
        own.touch()
        try:
            ended = project.run("ddp.job", SLIPWAY_SCRIPT=str(own), STUB_ON_TRAIN=JOIN)
        finally:
            own.unlink()
        assert (ended.code, ended.notes) == (0, [])
        mounts = [word for words in ended.of("apptainer") for word in words if "source=" in word]
        assert mounts != []
        assert [word for word in mounts if '"source=/"' in word] == []
