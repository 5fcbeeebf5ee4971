"""Attempts, verdicts, requeues, and RUN_DIR/job.sh: what decides how a job ends, and what continues a run."""

import os
import re
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from messages import assert_error, assert_warning, slugs
from stubs import (
    DONE,
    JOIN,
    OUT_OF_TIME,
    SCRIPTS,
    WAIT,
    Ended,
    changed_library,
    is_pbs,
    launches_of,
    option_of,
    payload_of,
)

JOB_2 = {"SLURM_JOB_ID": "4800", "PBS_JOBID": "4800.head"}
CHANGES = {
    "renamed": "sed --in-place s/make_scratch/make_local_folder/ lib/*.bash; echo exit 1 >ddp.job",
    "moved": 'mv "$PWD" ../old',
    "deleted": 'rm --recursive "$PWD"',
}
"""Changes to the folder of a script and its library after the first attempt."""
ROOT_ONLY = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
KINDS = ["ddp.job", "horovod-gloo.job", "ddp.pbs", "ddp.sh"]


@pytest.fixture
def first(project):
    """Return a job that has stopped at its time limit and whose run can be continued."""
    ended = project.run("ddp.job", **OUT_OF_TIME)
    assert ended.code == 75
    return ended


@pytest.fixture
def moved(project, first):
    """Return the same, its run folder moved."""
    first.run_dir = first.run_dir.rename(project.folder / "moved")
    return first


def again(project, first, *arguments, **env):
    """Submit RUN_DIR/job.sh of a run as a new job, from another folder, without settings."""
    script = first.run_dir / "job.sh"
    words = {"SLIPWAY_RUN_DIR": None, "SLIPWAY_LOCAL_DISK": None, "USE_CONTAINER": None, **JOB_2, **env}
    return project.run(script, *arguments, cwd=project.spool, **words)


@pytest.mark.parametrize("script", ["ddp.job", "single.job"])
def test_job_requeues_itself_at_time_limit(project, script):
    ended = project.run(script, **OUT_OF_TIME)
    assert ended.code == 75
    assert ended.calls[-1] == ["scontrol", "requeue", "4711"]
    assert_warning(ended.err, "requeued", 9, "requeue")
    assert ended.requeues == [1, 10]
    assert (ended.run_dir / "requeues").read_text() == "1 4711\n"


OWN = {"SLIPWAY_SCRIPT": "my train.py"}
LEAVES = 'echo "out-of-time {} time-limit" >"$RUN_DIR/verdict.$TRAINER_ATTEMPT"; exit 0'
TERM = 'kill -TERM "$STUB_SCRIPT_PID"; sleep 0.2'


@pytest.mark.parametrize(
    ("env", "code", "requeued", "said"),
    [
        # the verdict decides, not the launcher's exit code
        ({"STUB_VERDICT": "done 9 trained", "STUB_CODE": "1"}, 0, False, []),
        ({"STUB_VERDICT": "failed 9 disk full"}, 1, False, ["rank-failed"]),
        ({"STUB_VERDICT": "failed 9 diverged: the loss"}, 1, False, ["diverged"]),
        ({"STUB_VERDICT": "failed 0 no such model", "STUB_CODE": "78"}, 78, False, ["rank-failed"]),
        ({"STUB_VERDICT": "stopped 9 user"}, 75, False, []),
        ({"STUB_VERDICT": "stopped 3 time-limit but nothing"}, 75, False, []),
        ({"STUB_VERDICT": ""}, 1, False, ["rank-failed"]),
        ({"STUB_VERDICT": "garbage"}, 1, False, ["rank-failed"]),
        ({"STUB_VERDICT": "\\0\\0\\0"}, 1, False, ["rank-failed"]),
        # and not status.json, which is for users
        (
            {"STUB_ON_TRAIN": """echo '{"state": "done", "attempt": 1}' >"$RUN_DIR/status.json" """},
            1,
            False,
            ["rank-failed"],
        ),
        # a user's script may leave one; without one its exit code counts
        ({**OWN, "STUB_ON_TRAIN": LEAVES.format(5)}, 75, True, ["ranks-not-connected", "requeued"]),
        ({**OWN, "STUB_ON_TRAIN": LEAVES.format(0)}, 75, False, ["ranks-not-connected", "no-requeue"]),
        ({**OWN, "STUB_CODE": "0"}, 0, False, ["ranks-not-connected"]),
        *(({**OWN, "STUB_CODE": code}, int(code), False, []) for code in ("1", "75", "255")),
        # a cancelled job is not requeued, whatever its verdict
        *(
            ({**OUT_OF_TIME, "STUB_STATE": state}, 75, False, ["requeued", "no-requeue", "no-requeue"])
            for state in ("COMPLETING", "CANCELLED", "CANCELLED by 0")
        ),
        ({**OUT_OF_TIME, "STUB_ON_TRAIN": TERM}, 75, False, []),
        ({**DONE, "STUB_ON_TRAIN": TERM}, 0, False, []),
        # a job of salloc is interactive, whatever job requested it
        (
            {**OUT_OF_TIME, "STUB_BATCH": "0", "SLURMD_NODENAME": "node1"},
            75,
            False,
            ["requeued", "no-requeue", "no-requeue"],
        ),
        # SIGTERM after the verdict, while the script removes its folders, or from Slurm while it requeues the job
        ({**OUT_OF_TIME, "STUB_ON_SRUN": f"case $* in */remove_folders.sh*) {TERM} ;; esac"}, 75, False, []),
        ({**OUT_OF_TIME, "STUB_ON_SCONTROL": f"case $1 in requeue) {TERM} ;; esac"}, 75, True, ["requeued"]),
        # shell options in the environment change nothing
        *(
            ({**OUT_OF_TIME, name: value}, 75, True, ["requeued"])
            for name, value in (
                ("POSIXLY_CORRECT", "1"),
                ("SHELLOPTS", "noclobber"),
                ("SHELLOPTS", "noglob"),
                ("BASHOPTS", "failglob"),
            )
        ),
    ],
)
def test_exit_code_and_requeue_by_verdict(project, env, code, requeued, said):
    ended = project.run("ddp.job", **env)
    assert (ended.code, ended.requeued, slugs(ended.err)) == (code, requeued, said), ended


SILENT = {"STUB_ON_SCONTROL": 'case $* in *"show job"*) exit 1 ;; esac'}


@pytest.mark.parametrize(
    ("script", "env", "command"),
    [
        ("ddp.job", {"STUB_REQUEUE": "1"}, ["sbatch", "--nodes=2"]),
        ("ddp.job", SILENT, ["sbatch", "--nodes=2"]),
        # regression: a qsub that prints no job has submitted none
        ("ddp.pbs", {"STUB_ON_QSUB": "exit 1"}, ["qsub"]),
        ("ddp.pbs", {"STUB_ON_QSUB": "exit 0"}, ["qsub"]),
        ("ddp.pbs", {"STUB_ON_QSTAT": "exit 1"}, ["qsub"]),
    ],
)
def test_continue_command_is_printed_if_requeue_fails(project, script, env, command):
    ended = project.run(script, "--epochs", "9", **env, **OUT_OF_TIME)
    assert (ended.code, "no-requeue" in slugs(ended.err)) == (75, True)
    assert ended.continuation_words == [*command, str(ended.run_dir / "job.sh")]


class TestVerdict:
    def test_verdict_of_other_attempt_is_ignored(self, project, first):
        other = 'echo "done 9 x" >"$RUN_DIR/verdict.1"; echo "done 9 x" >"$RUN_DIR/verdict.3"; exit 9'
        second = project.run("ddp.job", SLIPWAY_RUN_DIR=str(first.run_dir), STUB_ON_TRAIN=other)
        assert (second.code, second.env["TRAINER_ATTEMPT"], second.requeued) == (9, "2", False)

    def test_cause_of_failure_is_reported_in_one_line(self, project):
        said = "trainer: the data are gone"
        ended = project.run("ddp.job", STUB_ERROR=said, STUB_CODE="1")
        log = ended.run_dir / "logs" / "1" / "stderr.log"
        assert ended.code == 1
        assert_error(ended.notes[-1], "rank-failed", said, 1, log)
        assert log.read_text() == f"{said}\n"

    # regression: rank-failed, exit code 143
    def test_signal_before_save_ends_job_as_stopped_early(self, project):
        kill = 'kill -TERM "$STUB_SCRIPT_PID"; sleep 1; exit 143'
        ended = project.run("ddp.sh", STUB_ON_TRAIN=kill)
        assert ended.code == 75, ended
        assert_error(ended.err, "stopped-early")
        assert ended.continuation_words == ["bash", str(ended.run_dir / "job.sh")]


class TestConcurrentStarts:
    """A second start in a run folder while a script without a lock trains there."""

    TRAIN = f'{WAIT}; test -d "$TMPDIR"'

    # regression: both trained, and the second removed the scratch of the first
    @pytest.mark.parametrize("script", ["ddp.job", "ddp.sh"])
    @pytest.mark.parametrize("killed", [False, True])
    def test_second_start_in_same_allocation_is_refused(self, project, script, killed):
        path = project.folder / f"my.{script}"  # by a name of the user's
        shutil.copy(SCRIPTS / script, path)
        own = {"SLIPWAY_LIB": str(SCRIPTS / "lib"), "STUB_BATCH": "0", "ENVIRONMENT": None}
        own |= {"SLIPWAY_SCRIPT": "my train.py", "SLURM_JOB_ID": "6120"}  # no other test ends its ranks
        first = project.start(path, STUB_ON_TRAIN=self.TRAIN, **own)
        first.until(project.up)
        if killed:
            first.process.kill()
            first.process.wait()
        second = project.run(first.run_dir / "job.sh", SLIPWAY_RUN_DIR=None, **own, STUB_ON_TRAIN="exit 9")
        second.assert_refused("folder-in-use", first.run_dir)
        assert len(project.on_disk()) == 1
        project.go()
        assert killed or first.end().code == 0
        while not (first.run_dir / "logs" / "1" / "code").exists():  # whoever has to end it
            time.sleep(0.05)
        third = project.run(first.run_dir / "job.sh", SLIPWAY_RUN_DIR=None, **own, STUB_ON_TRAIN=JOIN)
        assert (third.code, third.env["TRAINER_ATTEMPT"]) == (0, "2"), third


class TestSharedDisk:
    """A run folder on a disk that several clusters or machines share."""

    # regression: it trained there, too
    @pytest.mark.parametrize("script", ["ddp.job", "ddp.sh"])
    def test_job_possibly_running_on_other_machine_blocks_run(self, project, script):
        first = project.run(script, SLURM_CLUSTER_NAME="far", STUB_CODE="1")
        process = first.run_dir / "logs" / "1" / "process"
        began, ended = process.read_text().splitlines()
        assert (len(began.split()), ended) == (3, "ended 1")
        process.write_text(f"elsewhere {began.partition(' ')[2]}\n")  # as if it had not ended
        refused = again(project, first, SLURM_CLUSTER_NAME="near", STUB_ON_SCONTROL=self.SILENT_OF_FAR)
        refused.assert_refused("folder-in-use", first.run_dir, "elsewhere", "echo ended", "/logs/1/process")
        assert [path.name for path in (first.run_dir / "logs").iterdir()] == ["1"]
        process.write_text(f"{began}\n{ended}\n")
        third = again(project, first, SLURM_CLUSTER_NAME="near", STUB_ON_SCONTROL=self.SILENT_OF_FAR, **DONE)
        assert (third.code, third.env["TRAINER_ATTEMPT"], slugs(third.err)) == (0, "2", []), third
        if script == "ddp.job":
            jobs = [(first.run_dir / "logs" / number / "job").read_text() for number in "12"]
            assert jobs == ["slurm 4711 far\n", "slurm 4800 near\n"]

    # regression: it began at step 0, without a message
    def test_requeued_job_with_missing_run_folder_gives_warning(self, project):
        ended = project.run("ddp.job", SLURM_RESTART_COUNT="1", **DONE)
        assert ended.code == 0
        assert_warning(ended.err, "run-folder-moved", ended.run_dir)
        assert (
            slugs(project.run("ddp.job", SLURM_RESTART_COUNT="1", **DONE, SLIPWAY_RUN_DIR=str(ended.run_dir)).err) == []
        )

    SILENT_OF_FAR = 'case "$*" in *--clusters=far*) exit 1 ;; esac'


class TestAttempts:
    def test_each_attempt_has_next_number(self, project):
        first = project.run("ddp.job", STUB_CODE="1")
        folder = {"SLIPWAY_RUN_DIR": str(first.run_dir)}
        second = project.run("ddp.job", **folder, **OUT_OF_TIME)  # Slurm's requeue after the loss of a node
        third = again(project, first, STUB_CODE="1")  # manual
        (first.run_dir / "logs" / "7").mkdir()
        fourth = project.run("ddp.job", **folder, **DONE)
        numbers = [ended.env["TRAINER_ATTEMPT"] for ended in (first, second, third, fourth)]
        assert numbers == ["1", "2", "3", "8"]
        jobs = [(first.run_dir / "logs" / number / "job").read_text() for number in numbers]
        assert jobs == ["slurm 4711\n", "slurm 4711\n", "slurm 4800\n", "slurm 4711\n"]
        assert (first.run_dir / "logs" / "1" / "code").read_text() == "1\n"

    # regression: save_library removed RUN_DIR/lib while another job worked with it
    def test_concurrent_jobs_in_one_folder_share_no_attempt_number(self, project):
        """A job that finds the folder taken may be refused with a one-line error; none may fail in another way."""
        run_dir = project.folder / "run"
        seen = 'echo "$TRAINER_ATTEMPT" >>"$STUB_LOG.numbers"'
        env = {"SLIPWAY_RUN_DIR": str(run_dir), "STUB_ON_TRAIN": seen, **DONE}
        jobs = [project.start("ddp.job", SLURM_JOB_ID=str(number), **env) for number in range(4)]
        ended = [job.end() for job in jobs]
        codes = [one.code for one in ended]
        assert 0 in codes
        assert set(codes) <= {0, 78}, [one.err for one in ended if one.code]
        assert [one.notes for one in ended if one.code == 78 and (len(one.notes), len(slugs(one.err))) != (1, 1)] == []
        numbers = Path(f"{project.log}.numbers").read_text().split()
        assert (len(numbers), len(set(numbers))) == (codes.count(0), codes.count(0))

    def test_requeued_job_uses_library_of_run_folder(self, project):
        """Slurm starts the script again and passes only a count."""
        first = project.run("ddp.job", SLIPWAY_RUN_DIR=None, **OUT_OF_TIME)
        second = project.run("ddp.job", SLIPWAY_RUN_DIR=None, SLURM_RESTART_COUNT="1", SLIPWAY_LIB="/gone", **DONE)
        assert (first.code, second.code) == (75, 0)
        assert second.env["TRAINER_ATTEMPT"] == "2"

    def test_new_job_with_reused_job_id_is_refused(self, project):
        """A reinstalled cluster counts its jobs from 1."""
        first = project.run("ddp.job", SLIPWAY_RUN_DIR=None, **DONE)
        second = project.run("ddp.job", SLIPWAY_RUN_DIR=None)
        assert first.code == 0
        second.assert_refused("folder-holds-run", project.folder / "runs" / "ddp-4711" / "job.sh")
        assert launches_of(second) == []

    # regression: sbatch horovod.job ran the ddp.job of that folder without a message
    def test_run_folder_of_other_script_is_refused(self, project, first):
        for script in ("horovod.job", "ddp-ranks.job", "ddp.pbs"):
            second = project.run(script, SLIPWAY_RUN_DIR=str(first.run_dir), **DONE)
            second.assert_refused("folder-holds-run", first.run_dir, "job.sh")
            assert second.err.startswith(f"{script}: ")
        assert again(project, first, **DONE).code == 0

    @ROOT_ONLY
    def test_run_folder_of_other_user_is_refused(self, project):
        run_dir = project.folder / "theirs"
        run_dir.mkdir()
        os.chown(run_dir, 12345, 12345)
        (run_dir / "job.sh").write_text("#!/bin/bash\ntouch executed\n")
        os.chown(run_dir / "job.sh", 12345, 12345)
        ended = project.run("ddp.job", SLIPWAY_RUN_DIR=str(run_dir))
        ended.assert_refused("not-your-folder", run_dir, "SLIPWAY_RUN_DIR")
        assert not (project.folder / "executed").exists()

    # regression: with a user's `lock` or `run.json` in it, lib was removed and input.toml overwritten
    @pytest.mark.parametrize("script", ["ddp.job", "ddp.pbs", "ddp.sh"])
    @pytest.mark.parametrize(
        "files",
        [
            {"lib/mine": "mine"},
            {"lib/mine": "mine", "lock": "mine"},
            {"lib/mine": "mine", "run.json": '{"started": 1}'},
            {"logs/1/job": "slurm 1\n"},
        ],
    )
    def test_folder_with_other_files_is_refused_and_unchanged(self, project, script, files):
        folder = project.folder / "home"
        for name, text in {"input.toml": "mine", **files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        before = contents(folder)
        ended = project.run(script, SLIPWAY_RUN_DIR=str(folder))
        ended.assert_refused("folder-holds-other-files", folder, "SLIPWAY_RUN_DIR")
        assert contents(folder) == before

    def test_library_of_failed_first_attempt_is_replaced(self, project):
        lib = changed_library(project, "slurm.bash", "find_allocation() {", "find_allocation() { : once;")
        env = {"SLIPWAY_RUN_DIR": str(project.folder / "run"), "STUB_ON_SRUN": "exit 1"}
        assert project.run("ddp.job", SLIPWAY_LIB=str(lib), **env).code == 78
        kept = project.folder / "run" / "lib" / "slurm.bash"
        assert ": once;" in kept.read_text()
        assert not (project.folder / "run" / "job.sh").exists()
        assert project.run("ddp.job", SLIPWAY_RUN_DIR=env["SLIPWAY_RUN_DIR"], **DONE).code == 0
        assert ": once;" not in kept.read_text()


class TestOtherUsers:
    """A user who may write what a job runs could run code as the job's user."""

    def assert_not_run(self, project, first, path, *values):
        """Assert that no way to continue the run runs files that others own or can write."""
        copy = shutil.copy(first.run_dir / "job.sh", project.spool / "slurm_script")  # by Slurm
        starts = {"ddp.job": str(first.run_dir), str(first.run_dir / "job.sh"): None, str(copy): None}
        for script, run_dir in starts.items():
            ended = project.run(script, SLIPWAY_RUN_DIR=run_dir, **DONE)
            ended.assert_refused("writable-by-others", path.resolve(), *values)

    # regression: another member of the group replaced lib, and the job ran it
    @pytest.mark.parametrize("name", [".", "job.sh", "lib", "lib/job.bash", "input.toml"])
    def test_files_writable_by_others_are_not_run(self, project, first, name):
        path = first.run_dir / name
        path.chmod(path.stat().st_mode | 0o020)
        self.assert_not_run(project, first, path)

    @ROOT_ONLY
    @pytest.mark.parametrize("name", ["lib", "lib/job.bash"])
    def test_files_owned_by_others_are_not_run(self, project, first, name):
        os.chown(first.run_dir / name, 12345, 12345)
        self.assert_not_run(project, first, first.run_dir / name, 12345)

    def test_job_creates_no_files_writable_by_others(self, project):
        before = os.umask(0)
        try:
            output = {"SLIPWAY_RUN_DIR": None, "SLIPWAY_OUTPUT": str(project.folder / "new" / "runs")}
            ended = project.run("ddp.job", **output, **DONE)
        finally:
            os.umask(before)
        [run_dir] = (project.folder / "new" / "runs").glob("ddp-*")
        made = [project.folder / "new", run_dir.parent, run_dir, run_dir / "lib" / "__pycache__", *run_dir.rglob("*")]
        assert ended.code == 0, ended
        assert [path for path in made if path.stat().st_mode & 0o022 and not path.name.startswith("stub")] == []

    @ROOT_ONLY
    def test_library_of_other_user_is_accepted_only_if_named(self, project, open_folder):
        """A library in the submission folder was not named by the user."""
        jobscripts = open_folder / "jobscripts"
        shutil.copytree(SCRIPTS / "lib", jobscripts / "lib")
        mine, theirs = (shutil.copy(SCRIPTS / "ddp.job", folder) for folder in (project.spool, jobscripts))
        for path in (jobscripts, *jobscripts.rglob("*")):
            os.chown(path, 12345, 12345)
        named = project.run(mine, SLIPWAY_LIB=str(jobscripts / "lib"), **DONE)
        beside = project.run(theirs, **DONE)
        assert (named.code, beside.code) == (0, 0), (named, beside)
        project.run(mine, SLURM_SUBMIT_DIR=str(open_folder)).assert_refused("writable-by-others", jobscripts / "lib")
        os.chown(jobscripts / "lib" / "job.bash", 12346, 12346)
        for ended in (project.run(theirs), project.run(mine, SLIPWAY_LIB=str(jobscripts / "lib"))):
            ended.assert_refused("writable-by-others", 12346, jobscripts / "lib" / "job.bash")

    @pytest.mark.parametrize(("name", "mode"), [("lib/job.bash", 0o664), ("lib", 0o775), ("lib", 0o777), (".", 0o777)])
    def test_library_writable_by_others_is_refused(self, project, open_folder, name, mode):
        shutil.copytree(SCRIPTS / "lib", open_folder / "a" / "lib")
        path = open_folder / "a" / name
        path.chmod(mode)
        ended = project.run("ddp.job", SLIPWAY_LIB=str(open_folder / "a" / "lib"))
        ended.assert_refused("writable-by-others", path)

    # regression: refused under umask 002 with a private group for each user
    def test_clone_writable_by_private_group_is_accepted(self, project, open_folder):
        user, group = (12345, 12346) if os.getuid() == 0 else (os.getuid(), os.getgid())  # root has none
        shutil.copytree(SCRIPTS / "lib", open_folder / "clone" / "lib")
        script = shutil.copy(SCRIPTS / "ddp.job", open_folder / "clone")
        for path in (open_folder / "clone", *(open_folder / "clone").rglob("*")):
            os.chown(path, user, group)
            path.chmod(path.stat().st_mode | 0o020)
        ended = project.run(script, STUB_PRIVATE_GROUP=str(group), **DONE)
        assert (ended.code, ended.notes) == (0, [])
        project.run(script, **DONE).assert_refused("writable-by-others", "chmod -R go-w", open_folder / "clone" / "lib")

    # regression: refused, although a colleague's was not
    def test_team_writable_output_folder_gives_warning(self, project, open_folder):
        open_folder.chmod(0o2775)
        env = {"SLIPWAY_OUTPUT": str(open_folder / "runs"), "SLIPWAY_RUN_DIR": None}
        ended = project.run("ddp.job", **env, **OUT_OF_TIME)
        assert (ended.code, slugs(ended.err).count("writable-by-others")) == (75, 1)
        assert_warning(ended.err, "writable-by-others", open_folder)
        [run_dir] = (open_folder / "runs").iterdir()
        assert stat.S_IMODE(run_dir.stat().st_mode) & 0o777 == 0o700
        ended = project.run(run_dir / "job.sh", SLIPWAY_RUN_DIR=None, **DONE)
        assert (ended.code, slugs(ended.err)) == (0, ["writable-by-others"])

    @pytest.mark.parametrize("script", ["ddp.job", "ddp.pbs"])
    def test_trusted_folder_accepts_mode_777(self, project, open_folder, script):
        disk = open_folder / "disk"
        shutil.copytree(SCRIPTS / "lib", disk / "lib")
        (disk / "run").mkdir()
        env = {"SLIPWAY_LIB": str(disk / "lib"), "SLIPWAY_RUN_DIR": str(disk / "run")}

        def run(script: str | Path, **more: str | None) -> Ended:
            subprocess.run(["chmod", "--recursive", "777", disk], check=True)
            return project.run(script, **env, **more)

        run(script).assert_refused("writable-by-others", disk / "lib", "SLIPWAY_TRUSTED_FOLDER")
        assert run(script, SLIPWAY_TRUSTED_FOLDER=str(disk), **OUT_OF_TIME).code == 75
        run(script).assert_refused("writable-by-others", disk / "run")
        # the run's own script has kept the setting
        assert run(disk / "run" / "job.sh", **JOB_2, **DONE).code == 0


def contents(folder):
    """Return the contents of a folder, to compare them later."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


class TestRequeues:
    def test_job_requeues_itself_up_to_max_requeues(self, project):
        env = {"SLIPWAY_MAX_REQUEUES": "2", **OUT_OF_TIME}
        run_dir = str(project.folder / "run")
        ended = [project.run("ddp.job", SLIPWAY_RUN_DIR=run_dir, **env) for _ in range(3)]
        assert [one.requeued for one in ended] == [True, True, False]
        assert [one.code for one in ended] == [75, 75, 75]
        assert_warning(ended[-1].err, "no-requeue", 2, "SLIPWAY_MAX_REQUEUES")
        assert ended[-1].continuation_words == ["sbatch", "--nodes=2", f"{run_dir}/job.sh"]

    # regression: a verdict that named no step, or a run whose newest checkpoint was still the previous attempt's
    def test_job_requeues_itself_only_if_attempt_saved_a_step(self, project):
        folder = {"SLIPWAY_RUN_DIR": str(project.folder / "run")}
        saves = f'mkdir "$RUN_DIR/checkpoints"; ln -s step_8 "$RUN_DIR/checkpoints/latest"; {LEAVES.format(0)}'
        runs = [
            project.run("ddp.job", STUB_ON_TRAIN=does, **folder) for does in (LEAVES.format(0), saves, LEAVES.format(0))
        ]
        assert [slugs(ended.err) for ended in runs] == [["no-requeue"], ["requeued"], ["no-requeue"]]
        assert [(ended.code, ended.requeued) for ended in runs] == [(75, False), (75, True), (75, False)]

    def test_manual_submission_resets_requeue_count(self, project):
        first = project.run("ddp.job", SLIPWAY_MAX_REQUEUES="1", **OUT_OF_TIME)
        run_dir = str(first.run_dir)
        assert not project.run("ddp.job", SLIPWAY_RUN_DIR=run_dir, SLIPWAY_MAX_REQUEUES="1", **OUT_OF_TIME).requeued
        assert again(project, first, **OUT_OF_TIME).requeued
        assert (first.run_dir / "requeues").read_text() == "1 4711\n1 4800\n"

    # regression: each job of a run restarted the count, since the file held the other job's number
    def test_alternating_jobs_of_one_run_are_both_limited(self, project):
        first = project.run("ddp.job", SLIPWAY_MAX_REQUEUES="1", **OUT_OF_TIME)
        folder = {"SLIPWAY_RUN_DIR": str(first.run_dir), "SLIPWAY_MAX_REQUEUES": "1"}
        turns = [project.run("ddp.job", SLURM_JOB_ID=job, **folder, **OUT_OF_TIME) for job in ("12", "4711", "12")]
        assert [one.requeued for one in (first, *turns)] == [True, True, False, False]

    @pytest.mark.parametrize(
        "count",
        ["", "abc 4711", "a[$(touch executed)] 4711", "-5 4711", "99999999999999999999 4711", "08 4711"],
    )
    def test_damaged_count_or_earlier_attempt_is_not_a_requeue(self, project, count):
        """Slurm itself restarts a job after preemption and after the loss of a node."""
        run_dir = project.folder / "run"
        (run_dir / "logs" / "1").mkdir(parents=True)
        (run_dir / "logs" / "1" / "job").write_text("slurm 4711\n")
        (run_dir / "requeues").write_text(f"{count}\n")
        ended = project.run("ddp.job", SLIPWAY_RUN_DIR=str(run_dir), SLIPWAY_MAX_REQUEUES="1", **OUT_OF_TIME)
        assert (ended.code, ended.requeued, ended.requeues) == (75, True, [1, 1]), ended
        assert not (project.folder / "executed").exists()

    @pytest.mark.parametrize("broken", ["exit 1", "exec sleep 60"])
    @pytest.mark.parametrize(("verdict", "code"), [(OUT_OF_TIME, 75), (DONE, 0)])
    def test_failed_or_hung_cleanup_keeps_exit_code_and_requeue(self, project, broken, verdict, code):
        rm = f"case $* in */remove_folders.sh*) {broken} ;; esac"
        lib = changed_library(project, "scratch.bash", '"${cleanup_seconds:-20}"', "1")
        ended = project.run("ddp.job", STUB_ON_SRUN=rm, SLIPWAY_LIB=str(lib), **verdict)
        assert (ended.code, ended.requeued) == (code, code == 75)
        assert project.on_disk() == []  # of this node at least


class TestJobSh:
    """RUN_DIR/job.sh continues the run in a new job, whatever happens to the clone."""

    SET = {
        "USE_CONTAINER": "0",
        "SLIPWAY_VENV": "my venv",
        "SLIPWAY_DATA": "my data",
        "SLIPWAY_DEVICE": "auto",
        "SLIPWAY_RANKS_PER_NODE": "2",
        "SLIPWAY_STAGE": "1",
        "SLIPWAY_PREFLIGHT_SECONDS": "90",
    }
    ARGUMENTS = ("--tag", 'it\'s $(touch executed) "x" *', "--name", "a  b\n# Kept settings end.\n", "")

    @pytest.fixture(autouse=True)
    def venv(self, project):
        shutil.copytree(project.folder / ".venv", project.folder / "my venv", symlinks=True)

    @pytest.mark.parametrize("script", KINDS)
    def test_job_sh_keeps_settings_and_arguments(self, project, script):
        arguments = () if is_pbs(SCRIPTS / script) else self.ARGUMENTS
        first = project.run(script, *arguments, **self.SET, **DONE)
        second = again(project, first, STUB_CODE="3")
        assert (first.code, second.code) == (0, 3), second.err
        for name in ("PATH", "GPUS_PER_NODE", "RUN_DIR", "PWD", "OMP_NUM_THREADS"):
            assert second.env[name] == first.env[name], name
        assert second.env["DATA"].endswith("/data/my data")
        assert second.of("apptainer") == []
        given = [payload_of(ended)[payload_of(ended).index("auto") + 1 :] for ended in (first, second)]
        before, after = ([word for word in words if "slipway-" not in word] for words in given)
        assert before == after
        assert [*project.folder.glob("executed"), *project.spool.glob("executed")] == []

    def test_job_sh_keeps_backend(self, project):
        first = project.run("ddp.job", BACKEND="horovod", **DONE)
        second = again(project, first, **DONE)
        assert (second.code, second.env["HOROVOD_SIZE"]) == (0, "4")

    def test_job_sh_keeps_user_script_and_arguments_under_pbs(self, project):
        first = project.run("ddp.pbs", "--tag", "a, 'b'", SLIPWAY_SCRIPT="my train.py")
        second = again(project, first)
        assert (first.code, second.code) == (0, 0)
        own = [words for words in second.of("torchrun") if words[-2:] == ["--tag", "a, 'b'"]]
        assert own[0][-3] == str(project.folder / "my train.py")

    def test_job_sh_keeps_nothing_of_allocation(self, project, first):
        other = {"SLURM_GPUS_ON_NODE": "4", "STUB_NODES": "n7 n8 n9", "SLURM_JOB_CPUS_PER_NODE": "64(x3)"}
        second = again(project, first, STUB_ADDRESS="10.0.0.7", **other, **DONE)
        assert second.code == 0
        expected = {"TRAINER_WORLD_SIZE": "12", "OMP_NUM_THREADS": "16"}
        expected |= {"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "24800"}
        assert {name: second.env[name] for name in expected} == expected
        assert {"--nnodes=3", "--nproc-per-node=4"} <= set(payload_of(second))
        text = (first.run_dir / "job.sh").read_text()
        kept = text.partition("# Kept settings (")[2].partition("# Kept settings end.")[0]
        assert re.findall("RANKS_PER_NODE|MASTER_|OMP_|NODELIST|10.0.0|24711", kept) == []

    def test_current_variables_override_kept_settings(self, project):
        first = project.run("ddp.job", "--epochs", "1", SLIPWAY_DEVICE="auto", SLIPWAY_RANKS_PER_NODE="2", **DONE)
        second = again(project, first, "--epochs", "2", SLIPWAY_DEVICE="cpu", SLIPWAY_RANKS_PER_NODE="1", **DONE)
        assert option_of(second, "--device") == "cpu"
        assert payload_of(second)[-2:] == ["--epochs", "2"]
        assert second.env["TRAINER_RANKS_PER_NODE"] == "1"
        third = again(project, first, SLURM_JOB_ID="4900", **DONE)  # and is kept from then on
        assert third.env["TRAINER_RANKS_PER_NODE"] == "1"
        assert payload_of(third)[-2:] == ["--epochs", "2"]

    def test_kept_settings_override_variables_in_requeue(self, project):
        """Slurm starts it with the submission's environment, though job.sh may know better."""
        first = project.run("ddp.job", SLIPWAY_DEVICE="auto", **OUT_OF_TIME)
        edited = (
            (first.run_dir / "job.sh")
            .read_text()
            .replace("restore_setting SLIPWAY_DEVICE auto", "restore_setting SLIPWAY_DEVICE cpu")
        )
        (first.run_dir / "job.sh").write_text(edited)
        second = project.run("ddp.job", SLIPWAY_RUN_DIR=str(first.run_dir), SLIPWAY_DEVICE="auto", **DONE)
        assert option_of(second, "--device") == "cpu"

    def test_third_attempt_has_settings_of_first(self, project):
        first = project.run("ddp.job", **self.SET, **OUT_OF_TIME)
        second = again(project, first, **OUT_OF_TIME)
        third = again(project, first, SLURM_JOB_ID="4900", **DONE)
        assert (second.code, third.code) == (75, 0)
        assert third.env["TRAINER_ATTEMPT"] == "3"
        assert third.of("apptainer") == []
        text = (first.run_dir / "job.sh").read_text()
        assert text.count("# Kept settings (") == text.count("# Kept settings end.") == 1

    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("started", ["requeue", "new job"])
    def test_kept_library_runs_after_original_changed_or_moved(self, project, change, started):
        scripts = project.folder / "jobscripts"
        shutil.copytree(SCRIPTS / "lib", scripts / "lib")
        script = shutil.copy(SCRIPTS / "ddp.job", scripts)
        first = project.run(script, **OUT_OF_TIME)
        assert first.code == 75
        kept = shutil.copy(script, project.spool / "slurm_script")  # by Slurm
        subprocess.run(["bash", "-c", CHANGES[change]], cwd=scripts, check=True)
        if started == "requeue":
            second = project.run(kept, SLIPWAY_RUN_DIR=str(first.run_dir), **DONE)
        else:
            second = again(project, first, **DONE)
        assert (second.code, second.notes) == (0, [])

    def test_run_continues_after_clone_is_deleted(self, project, tmp_path):
        first = project.run("ddp.job", SLIPWAY_RUN_DIR=str(tmp_path / "elsewhere"), **DONE)
        assert first.code == 0
        (tmp_path / "image.sif").touch()
        disk = tmp_path / "disk"
        disk.mkdir()
        shutil.rmtree(project.folder)
        second = again(project, first, SLIPWAY_IMAGE=str(tmp_path / "image.sif"), SLIPWAY_LOCAL_DISK=str(disk), **DONE)
        assert (second.code, second.notes) == (0, [])
        assert str(first.run_dir / "input.toml") in payload_of(second)
        project.folder.mkdir()

    # regression: after `cd -- "$kept_folder"` save_job_script looks for a relative $0 there
    def test_job_sh_starts_by_bare_name_in_run_folder(self, project):
        first = project.run("ddp.sh", **OUT_OF_TIME)
        second = project.run("/bin/bash", "job.sh", cwd=first.run_dir, SLIPWAY_RUN_DIR=None, **DONE)
        assert (second.code, second.notes) == (0, []), second.err

    # regression: run_dir is made absolute only after `cd -- "$kept_folder"`
    def test_job_sh_accepts_relative_run_folder(self, project, moved):
        script = moved.run_dir / "job.sh"
        second = project.run(script, cwd=project.folder / "configs", SLIPWAY_RUN_DIR="../moved", **DONE)
        assert (second.code, second.notes) == (0, []), second.err
        assert (second.env["TRAINER_ATTEMPT"], second.env["RUN_DIR"]) == ("2", str(moved.run_dir))

    def test_moved_run_folder_is_refused_without_run_dir_setting(self, project, moved):
        again(project, moved).assert_refused("run-folder-moved", project.folder / "run 1", "SLIPWAY_RUN_DIR")

    # regression: the kept SLIPWAY_CONFIG names input.toml by the old path
    def test_moved_run_folder_continues_with_run_dir_setting(self, project, moved):
        second = again(project, moved, SLIPWAY_RUN_DIR=str(moved.run_dir), **DONE)
        assert (second.code, second.env.get("RUN_DIR")) == (0, str(moved.run_dir)), second

    # regression: the run from which it was copied continued, with other arguments
    @pytest.mark.parametrize("way", ["path", "setting", "command"])
    def test_copied_run_folder_does_not_continue_original(self, project, first, way):
        fork = project.folder / "fork"
        shutil.copytree(first.run_dir, fork, symlinks=True)
        kept = shutil.copy(fork / "job.sh", project.spool / "slurm_script")  # by Slurm
        script, env = {
            "path": (fork / "job.sh", {}),
            "setting": (first.run_dir / "job.sh", {"SLIPWAY_RUN_DIR": str(fork)}),
            "command": (kept, {"STUB_COMMAND": f"{fork / 'job.sh'} --lr 9"}),
        }[way]
        second = project.run(script, "--lr", "9", **{"SLIPWAY_RUN_DIR": None, **JOB_2, **env})
        second.assert_refused("run-folder-moved", fork / "job.sh", first.run_dir / "job.sh")
        assert launches_of(second) == []

    # regression: the original continued
    def test_spooled_job_sh_is_refused_if_slurm_is_silent(self, project, first):
        script = shutil.copy(first.run_dir / "job.sh", project.spool / "slurm_script")
        silent = {**SILENT, "SLURM_JOB_ID": "4800"}
        second = project.run(script, SLIPWAY_RUN_DIR=None, **silent)
        second.assert_refused("scheduler-silent", first.run_dir, "SLIPWAY_RUN_DIR")
        for named in ({"SLIPWAY_RUN_DIR": str(first.run_dir)}, {"SLIPWAY_RUN_DIR": None, "SLURM_RESTART_COUNT": "1"}):
            assert project.run(script, **named, **silent, **DONE).code == 0

    def test_resumed_job_ignores_changed_configuration(self, project, first):
        (project.folder / "configs" / "digits.toml").write_text("epochs = 99\n")
        second = again(project, first, **DONE)
        assert Path(option_of(second, "trainer")).read_text() == "epochs = 1\n"

    def test_previous_job_sh_remains_if_write_fails(self, project, first):
        """If the disk fills up while job.sh is written, the previous one remains."""
        before = (first.run_dir / "job.sh").read_text()
        broken = project.spool / "broken"
        broken.mkdir()
        (broken / "sed").write_text('#!/bin/bash\ncase $* in *Kept*) echo half; exit 4 ;; esac; exec /bin/sed "$@"\n')
        (broken / "sed").chmod(0o755)
        env = project.environment(SCRIPTS / "ddp.job")
        second = project.run("ddp.job", SLIPWAY_RUN_DIR=str(first.run_dir), PATH=f"{broken}:{env['PATH']}")
        second.assert_refused("cannot-write", first.run_dir / "job.sh")
        assert (first.run_dir / "job.sh").read_text() == before
        assert launches_of(second) == []
