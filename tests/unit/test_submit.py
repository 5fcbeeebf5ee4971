"""jobgen submit: checks before a job enters the queue, what it passes on, and what it needs of a clone."""

import errno
import grp
import os
import pwd
import re
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from jobgen.cli import main
from jobgen.jobs.owners import shared
from jobgen.runtimes import container_names, container_of
from messages import assert_error, assert_names, assert_warning, messages
from slipway.base.contract import SETTINGS
from slipway.base.slugs import SLUGS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("login_node")


@pytest.fixture
def clone(login_node):
    """Return a clone with an image in it, the working directory."""
    return login_node / "clone"


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """Return an empty folder with an image in it, the working directory."""
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "slipway.sif").touch()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def library(clone):
    """Return a copy of the library in the clone."""
    (clone / "jobscripts").unlink()
    shutil.copytree(ROOT / "jobscripts", clone / "jobscripts")
    return (clone / "jobscripts" / "lib").resolve()


def write_site(*lines):
    """Write mine.toml: the example site with additional ``lines``."""
    text = (ROOT / "jobscripts" / "sites" / "example.toml").read_text()
    Path("mine.toml").write_text("\n".join([*lines, text]))


def submit(capsys, *words, spec="ddp", site="example", code=0):
    assert main(["submit", spec, "--site", site, *words]) == code
    return capsys.readouterr()


def refused(capsys, slug, *values, words=(), code=78, **job):
    """Assert that nothing is submitted: a one-line error with this slug."""
    out, err = submit(capsys, *words, code=code, **job)
    assert_error(err, slug, *values)
    assert (out, err.count("\n"), err[:8]) == ("", 1, "jobgen: ")
    return messages(err)[0].text


def would_submit(err):
    """Return the command in the last line of a dry run."""
    return err.splitlines()[-1].rpartition(": ")[2]


def recorded(folder, what):
    """Return the arguments, the environment or the script of the last submission."""
    number = (folder / "number").read_text().strip()
    return (folder / f"{number}.{what}").read_text()


def environment(folder):
    return dict(line.partition("=")[::2] for line in recorded(folder, "environment").splitlines())


def given(folder):
    """Return the settings that the submitted script sets if its environment does not."""
    text = recorded(folder, "script")
    lines = text[text.index("\ngiven() {") : text.index("\n\n# The run folder")]
    command = ["env", "-i", "/bin/bash", "-euc", f"{lines}\nexec /usr/bin/env --null"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(pair.partition("=")[::2] for pair in done.stdout.split("\0") if pair)


class TestSubmission:
    @pytest.mark.parametrize(
        ("inside", "fault"),
        [("1", ("no-image", "SLIPWAY_IMAGE: slipway.sif")), ("0", ("no-environment", "SLIPWAY_VENV: .venv/bin/p"))],
    )
    def test_dry_run_prints_script_despite_missing_image_or_environment(
        self, capsys, empty, monkeypatch, inside, fault
    ):
        (empty / "slipway.sif").unlink()
        monkeypatch.setenv("USE_CONTAINER", inside)
        out, err = submit(capsys, "--dry-run", code=78)
        assert "#SBATCH" in out
        assert_error(err, *fault)
        assert would_submit(err) == "sbatch --parsable SCRIPT"

    @pytest.mark.parametrize(
        ("site", "given", "command"),
        [
            ("example", "SLIPWAY_LIB {clone}/jobscripts/lib", "sbatch --parsable SCRIPT --arch mlp"),
            ("pbs", "SLIPWAY_ARGS '--arch mlp'", "qsub -V SCRIPT"),
        ],
    )
    def test_dry_run_prints_script_and_submit_command(self, capsys, clone, site, given, command):
        out, err = submit(capsys, "--dry-run", "--", "--arch", "mlp", site=site)
        assert out.startswith("#!/usr/bin/env bash")
        assert f"\ngiven {given.format(clone=clone)}\n" in out
        assert would_submit(err) == command

    def test_dry_run_prints_each_setting_and_its_source(self, capsys, setenv, monkeypatch):
        monkeypatch.setenv("USE_CONTAINER", "0")
        settings = ["--set", "output=$SCRATCH/runs", "--set", "data=/set of $USER", "--set", "local_disk=$NOWHERE"]
        setenv(USER="me", SCRATCH="/scratch/me")
        monkeypatch.delenv("NOWHERE", raising=False)
        err = submit(capsys, "--dry-run", *settings, code=78).err
        shown = re.findall(r"(?m)^jobgen: (\w+)=(.*) \((.*)\)$", err)
        assert {name: (value, source) for name, value, source in shown}.items() >= {
            "USE_CONTAINER": ("0", "set here"),
            "SLIPWAY_OUTPUT": ("/scratch/me/runs", "site example"),
            "SLIPWAY_DATA": ("'/set of me'", "site example"),
            "SLIPWAY_CONFIG": ("configs/digits.toml", "spec ddp"),
            "SLIPWAY_IMAGE": ("slipway.sif", "default"),
            "SLIPWAY_STAGE": ("0", "default"),
        }.items()
        sources = {name: source for name, _, source in shown}
        assert sources["SLIPWAY_LOCAL_DISK"] == "site example"  # only the nodes know its value
        faults = [(fault.slug, fault.text.partition(":")[0]) for fault in messages(err)]
        assert faults == [("no-environment", "SLIPWAY_VENV"), ("no-data", "SLIPWAY_DATA")]

    # regression: with SBATCH_EXPORT=NONE every setting was lost, and the job ran in the image
    @pytest.mark.parametrize("site", ["example", "pbs"])
    def test_settings_are_written_into_submitted_script(self, capsys, login_node, setenv, clone, site):
        (clone / "my set").mkdir()
        setenv(SLIPWAY_DATA="my set", SLIPWAY_STAGE="1")
        submit(capsys, site=site)
        library = str(clone / "jobscripts" / "lib")
        assert given(login_node).items() >= {
            "SLIPWAY_DATA": "my set", "SLIPWAY_STAGE": "1", "SLIPWAY_LIB": library
        }.items()  # fmt: skip

    # regression: no extra node, so the job trained on one fewer and ended with the first that it lost
    def test_spare_nodes_are_requested(self, capsys, setenv, monkeypatch):
        monkeypatch.setenv("SLIPWAY_SPARES", "1")
        assert_names(submit(capsys, "--dry-run", "--set", "nodes=4").out, "#SBATCH --nodes=5", "#SBATCH --no-kill")
        assert "select=5:" in submit(capsys, "--dry-run", "--set", "nodes=4", site="pbs").out
        setenv(SLIPWAY_SPARES="0", SLIPWAY_SHRINK="1")
        assert_names(submit(capsys, "--dry-run", "--set", "spares=2").out, "#SBATCH --nodes=2", "#SBATCH --no-kill")
        monkeypatch.setenv("SLIPWAY_SHRINK", "yes")
        assert_error(submit(capsys, "--dry-run", code=78).err, "bad-value", "SLIPWAY_SHRINK", "'yes'")

    @pytest.mark.parametrize(
        ("slug", "variables"),
        [
            ("no-image", {"SLIPWAY_IMAGE": "missing"}),
            ("no-environment", {"USE_CONTAINER": "0", "SLIPWAY_VENV": "missing"}),
            ("no-script", {"SLIPWAY_SCRIPT": "missing"}),
            ("no-data", {"SLIPWAY_DATA": "missing"}),
            ("wrong-backend", {"BACKEND": "single"}),
            ("bad-value", {"SLIPWAY_STAGE": "yes"}),
            ("no-library", {"SLIPWAY_LIB": "configs"}),
            ("no-scheduler-command", {"PATH": "/nowhere"}),
            (None, {}),
        ],
    )
    def test_dry_run_exits_with_code_of_submission(self, capsys, setenv, slug, variables):
        setenv(**variables)
        code = SLUGS[slug].exit_code if slug else 0
        for dry in ([], ["--dry-run"]):
            found = main(["submit", "ddp", "--site", "example", *dry])
            err = capsys.readouterr().err
            assert (found, [each.slug for each in messages(err)]) == (code, [slug] if slug else []), dry

    def test_dry_run_reports_config_path_that_cannot_be_written(self, capsys, empty):
        (empty / "configs").write_text("a file")
        assert_error(submit(capsys, "--dry-run", code=78).err, "cannot-write", "SLIPWAY_CONFIG", "configs/digits.toml")

    def test_test_only_flag_is_passed_to_sbatch(self, capsys, login_node):
        submit(capsys, "--test-only")
        assert recorded(login_node, "arguments").startswith("--test-only\n")

    def test_script_in_clone_uses_library_path(self, capsys, login_node, clone):
        assert submit(capsys, "--", "--epochs", "2").out == ""
        arguments = recorded(login_node, "arguments").splitlines()
        script = Path(arguments.pop(1))
        assert arguments == ["--parsable", "--epochs", "2"]
        assert script.name == "ddp.job"
        assert not script.exists()
        assert given(login_node)["SLIPWAY_LIB"] == str(clone / "jobscripts" / "lib")

    def test_slipway_lib_replaces_standalone_script(self, capsys, login_node, empty, monkeypatch):
        (empty / "site-lib").symlink_to(ROOT / "jobscripts" / "lib")
        monkeypatch.setenv("SLIPWAY_LIB", "site-lib")
        submit(capsys)
        assert given(login_node)["SLIPWAY_LIB"] == str(empty / "site-lib")
        assert "--standalone" not in recorded(login_node, "script")

    @pytest.mark.parametrize("hostile", ["a,b", "it's", 'a "b"', "$(touch x)", "ü"])
    def test_pbs_arguments_are_passed_unchanged(self, capsys, login_node, monkeypatch, hostile):
        monkeypatch.setenv("SLIPWAY_SCRIPT", __file__)
        submit(capsys, "--", hostile, "-x", site="pbs")
        assert recorded(login_node, "arguments").splitlines()[0] == "-V"
        assert shlex.split(given(login_node)["SLIPWAY_ARGS"]) == [hostile, "-x"]

    def test_exports_of_running_job_are_not_passed_to_submitted_job(self, capsys, login_node, setenv):
        setenv(
            RUN_DIR="/runs/ddp-1",
            OMP_NUM_THREADS="7",
            MASTER_PORT="29500",
            SLIPWAY_EXPORTED="\nRUN_DIR=/runs/ddp-1\nOMP_NUM_THREADS=4\nMASTER_PORT=29500\n",
        )
        submit(capsys)
        found = environment(login_node)
        assert not {"RUN_DIR", "MASTER_PORT", "SLIPWAY_EXPORTED"} & found.keys()
        assert found["OMP_NUM_THREADS"] == "7"  # set since

    # regression: an srun of the new job took SLURM_CPU_BIND of the surrounding job: all ranks on one core
    def test_scheduler_variables_of_outer_job_are_not_passed_on(self, capsys, login_node, setenv):
        around = {"SLURM_CPU_BIND": "mask_cpu:0x1", "SLURM_ARRAY_TASK_ID": "3", "SLURM_GPUS_PER_TASK": "1"}
        kept = {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_RESERVATION": "x", "SLURM_MPI_TYPE": "pmi2"}
        setenv(**around, **kept, ENVIRONMENT="BATCH")
        submit(capsys)  # on a login node they are the user's
        assert around.items() <= environment(login_node).items()
        setenv(SLURM_JOB_ID="4711", PBS_ARRAY_INDEX="3")  # of no job of PBS
        submit(capsys)
        found = environment(login_node)
        assert not {*around, "ENVIRONMENT", "SLURM_JOB_ID", "SLURM_MPI_TYPE"} & found.keys()
        assert {"SLURM_CONF", "SBATCH_RESERVATION", "PBS_ARRAY_INDEX"} <= found.keys()


class TestWithoutClone:
    def test_standalone_script_and_config_copy_are_used(self, capsys, login_node, empty):
        err = submit(capsys).err
        assert re.findall(r"\S*configs/digits\.toml", err)[1:] == ["configs/digits.toml"]
        assert err.count("\n") == 1
        assert (empty / "configs" / "digits.toml").read_text() == (ROOT / "configs" / "digits.toml").read_text()
        text = recorded(login_node, "script")
        assert "--standalone" in text
        assert "\nopen_run_folder() {\n" in text
        assert "SLIPWAY_LIB" not in environment(login_node)

    def test_existing_config_is_kept(self, capsys, empty):
        (empty / "configs").mkdir()
        (empty / "configs" / "digits.toml").write_text("# mine\n")
        assert submit(capsys).err == ""
        assert (empty / "configs" / "digits.toml").read_text() == "# mine\n"

    def test_dry_run_writes_no_config(self, capsys, empty):
        assert "configs/digits.toml" in submit(capsys, "--dry-run").err.splitlines()[0]
        assert not (empty / "configs").exists()

    @pytest.mark.parametrize(("spec", "program"), [("image_build", "build/image"), ("venv_build", "build/setup")])
    def test_build_jobs_require_clone(self, capsys, empty, spec, program):
        refused(capsys, "no-clone", spec, program, empty, spec=spec)

    def test_missing_image_remedy_mentions_clone(self, capsys, empty):
        (empty / "slipway.sif").unlink()
        refused(capsys, "no-image", "`jobgen submit image_build --site example`", "clone")


class TestPrecheck:
    @pytest.mark.parametrize(
        ("spec", "variables", "slug", "values"),
        [
            (
                "ddp",
                {"SLIPWAY_IMAGE": "missing"},
                "no-image",
                ["SLIPWAY_IMAGE: missing", "`jobgen submit image_build --site example`", "USE_CONTAINER=0"],
            ),
            (
                "ddp",
                {"SLIPWAY_VENV": "missing", "USE_CONTAINER": "0"},
                "no-environment",
                ["SLIPWAY_VENV: missing", "`jobgen submit venv_build --site example`", "USE_CONTAINER=1"],
            ),
            ("ddp", {"SLIPWAY_CONFIG": "missing"}, "no-script", ["SLIPWAY_CONFIG: missing", "configs/"]),
            ("ddp", {"SLIPWAY_CONFIG": "/"}, "no-script", ["SLIPWAY_CONFIG: / "]),
            ("ddp", {"SLIPWAY_SCRIPT": "missing"}, "no-script", ["SLIPWAY_SCRIPT: missing"]),
            ("ddp", {"SLIPWAY_SCRIPT": "/"}, "no-script", ["SLIPWAY_SCRIPT: / "]),
            ("ddp", {"SLIPWAY_DATA": "missing"}, "no-data", ["SLIPWAY_DATA: missing"]),
            ("ddp", {"SLIPWAY_LIB": "configs"}, "no-library", ["SLIPWAY_LIB", "/configs/job.bash "]),
            (
                "image_build",
                {"SLIPWAY_VARIANT": "cdua"},
                "unknown-name",
                ["SLIPWAY_VARIANT", "cdua.env", "containers/pins", "'cuda'"],
            ),
            (
                "venv_build",
                {"SLIPWAY_VARIANT": "cpu", "SLIPWAY_WHEELHOUSE": "missing"},
                "no-wheelhouse",
                ["SLIPWAY_WHEELHOUSE: missing ", "`make wheelhouse`"],
            ),
        ],
    )
    def test_missing_input_is_refused_before_submission(self, capsys, setenv, *, spec, variables, slug, values):
        setenv(**variables)
        refused(capsys, slug, *values, spec=spec)

    # regression: tracebacks; root may read all
    @pytest.mark.parametrize(
        ("method", "name"),
        [
            ("iterdir", "SLIPWAY_LIB"),
            ("is_dir", "SLIPWAY_LIB"),
            ("exists", "SLIPWAY_CONFIG"),
            ("is_file", "SLIPWAY_RUN_DIR"),
        ],
    )
    def test_inaccessible_folder_is_refused(self, capsys, clone, monkeypatch, method, name):
        (clone / "closed").symlink_to(ROOT / "jobscripts" / "lib")
        monkeypatch.setenv(name, "closed")
        inner = getattr(Path, method)

        def denied(path):
            if path in {Path("closed"), Path("closed", "job.sh"), ROOT / "jobscripts" / "lib"}:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return inner(path)

        monkeypatch.setattr(Path, method, denied)
        slug, path = ("no-library", ROOT / "jobscripts" / "lib") if name == "SLIPWAY_LIB" else ("cannot-read", "closed")
        refused(capsys, slug, path)

    def test_library_writable_or_owned_by_others_is_refused(self, capsys, library, monkeypatch):
        file = library / "job.bash"
        before = file.stat().st_mode
        file.chmod(before | 0o002)
        refused(capsys, "writable-by-others", file)
        file.chmod(before)
        if os.getuid() == 0:  # only root can give a file away
            os.chown(library, 12345, 12345)
            os.chown(file, 12345, 12345)
            refused(capsys, "writable-by-others", library, 12345)
            monkeypatch.setenv("SLIPWAY_LIB", str(library))
            submit(capsys)

    def test_resumed_run_is_submitted_without_image_check(self, capsys, login_node, monkeypatch):
        (login_node / "run").mkdir()
        (login_node / "run" / "job.sh").touch()
        monkeypatch.setenv("SLIPWAY_RUN_DIR", str(login_node / "run"))
        Path("slipway.sif").unlink()
        submit(capsys)

    def test_local_venv_requires_clone_and_wheelhouse(self, capsys, monkeypatch, empty):
        monkeypatch.setenv("USE_CONTAINER", "0")
        write_site('venv = "local"')
        monkeypatch.setenv("SLIPWAY_WHEELHOUSE", str(empty))
        refused(capsys, "no-clone", "example", "build/setup", empty, site="mine.toml")
        (empty / "build").symlink_to(ROOT / "build")
        submit(capsys, site="mine.toml")
        monkeypatch.setenv("SLIPWAY_WHEELHOUSE", "missing")
        refused(capsys, "no-wheelhouse", "SLIPWAY_WHEELHOUSE: missing ", "`make wheelhouse`", site="mine.toml")
        monkeypatch.delenv("SLIPWAY_WHEELHOUSE")
        values = ("SLIPWAY_VENV=local", "SLIPWAY_WHEELHOUSE", "downloads = true")
        refused(capsys, "no-wheelhouse", *values, "example", "`make wheelhouse`", site="mine.toml")
        write_site('venv = "local"', "downloads = true")
        submit(capsys, site="mine.toml")

    def test_config_that_cannot_be_written_is_refused(self, capsys, empty):
        (empty / "configs").write_text("a file")
        values = ("SLIPWAY_CONFIG", "configs/digits.toml", os.strerror(errno.EEXIST))
        assert_error(submit(capsys, code=78).err, "cannot-write", *values)

    def test_missing_scheduler_or_unsupported_option_is_refused(self, capsys, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setenv("PATH", "/nowhere")
            refused(capsys, "no-scheduler-command", "sbatch", "--dry-run")
        command = re.escape("`jobgen render jobscripts/specs/ddp-local.toml --site ") + r"\S*/laptop\.toml "
        command += re.escape("--output ddp.sh && bash ddp.sh --epochs 3`")
        said = refused(capsys, "no-scheduler", "laptop", words=["--", "--epochs", "3"], spec="ddp-local", site="laptop")
        assert re.search(command, said)
        said = refused(capsys, "no-scheduler", "dask", spec="dask")
        assert re.search(r"`jobgen render jobscripts/specs/dask\.toml --site \S+ --output dask\.sh && bash dask", said)
        refused(capsys, "unsupported-option", "--test-only", "qsub", words=["--test-only"], site="pbs")


class TestPrivateGroups:
    """Others cannot write to files that only the user's private group may write.

    Regression: refused under umask 002, the default where each user has a private group.
    """

    USER, GROUP = (12345, 12346) if os.getuid() == 0 else (os.getuid(), os.getgid())  # root has none
    LISTS_ALL = f"echo +::::::; echo bob:x:{USER + 1}:"

    @pytest.fixture(autouse=True)
    def of_a_group(self, library, monkeypatch):
        """Give the library to user ann and make it writable for group ann."""
        for path in (library, library / "job.bash"):
            os.chown(path, self.USER, self.GROUP)
            path.chmod(path.stat().st_mode | 0o020)
        monkeypatch.setenv("SLIPWAY_LIB", str(library))
        ann = pwd.struct_passwd(("ann", "x", self.USER, self.GROUP, "", "/", ""))
        monkeypatch.setattr(pwd, "getpwuid", lambda _: ann)
        self.set_group(monkeypatch, "ann", [])

    def set_group(self, monkeypatch, name, members):
        group = grp.struct_group((name, "x", self.GROUP, members))
        monkeypatch.setattr(grp, "getgrgid", lambda _: group)

    def set_users(self, login_node, script):
        """Let getent list the users that ``script`` prints."""
        getent = login_node / "bin" / "getent"
        getent.write_text(f"#!/bin/sh\n{script}\n")
        getent.chmod(0o755)

    @pytest.mark.parametrize("users", ["exit 3", f"{LISTS_ALL}{GROUP + 1}::/:"], ids=["not-listed", "other-groups"])
    def test_private_group_of_user_is_accepted(self, capsys, login_node, users):
        self.set_users(login_node, users)
        submit(capsys)

    @pytest.mark.parametrize(("name", "members"), [("ann", ["ann", "bob"]), ("team", [])])
    def test_group_with_several_members_is_refused(self, capsys, library, monkeypatch, name, members):
        self.set_group(monkeypatch, name, members)
        refused(capsys, "writable-by-others", library, self.GROUP, f"chmod -R go-w {library}")

    def test_group_shared_with_other_user_requires_trusted_folder(self, capsys, library, login_node, monkeypatch):
        self.set_users(login_node, f"{self.LISTS_ALL}{self.GROUP}::/:")
        refused(capsys, "writable-by-others", library, self.GROUP)
        monkeypatch.setenv("SLIPWAY_TRUSTED_FOLDER", str(library.parent))
        submit(capsys)
        monkeypatch.setenv("SLIPWAY_TRUSTED_FOLDER", str(library / "job"))
        refused(capsys, "writable-by-others", library)
        monkeypatch.setenv("SLIPWAY_TRUSTED_FOLDER", "jobscripts")
        refused(capsys, "bad-value", "SLIPWAY_TRUSTED_FOLDER")

    # regression: a directory that lists 100,000 users takes minutes
    @pytest.mark.parametrize(("listed", "refusals"), [(None, 0), (f"bob:x:{USER + 1}:{GROUP}::/:".encode(), 1)])
    def test_slow_user_directory_is_checked_as_far_as_listed(self, library, monkeypatch, listed, refusals):
        def silent(words, **options):
            raise subprocess.TimeoutExpired(words, options["timeout"], listed)

        monkeypatch.setattr("jobgen.jobs.owners.subprocess.run", silent)
        assert len([*shared([library], trusted="", owner=self.USER)]) == refusals


class TestData:
    """With the job's own messages: tests/stubrun/test_data.py."""

    @pytest.fixture(autouse=True)
    def data(self, clone, monkeypatch):
        (clone / "my train.py").touch()
        (clone / "image").write_bytes(b"hsqs" + bytes(200))
        with tarfile.open(clone / "tar", "w") as tar:
            tar.addfile(tarfile.TarInfo("x"))
        (clone / "text file").write_text("text")
        (clone / "folder").mkdir()
        os.mkfifo(clone / "fifo")
        (clone / "venv" / "bin").mkdir(parents=True)
        (clone / "venv" / "bin" / "python").touch()
        monkeypatch.setenv("TAR_OPTIONS", "--nonsense")

    @pytest.mark.parametrize(
        ("name", "settings", "values"),
        [
            ("image", {"USE_CONTAINER": "0", "SLIPWAY_VENV": "venv"}, ["squashfs", "USE_CONTAINER=1", "unsquashfs"]),
            ("tar", {}, ["SLIPWAY_STAGE=1"]),
            ("tar", {"SLIPWAY_STAGE": "0", "SLIPWAY_SCRIPT": "my train.py"}, ["SLIPWAY_STAGE=1"]),
            ("text file", {"SLIPWAY_STAGE": "1"}, ["ZIP", "squashfs", "tar"]),
            ("fifo", {}, ["ZIP", "squashfs", "tar"]),  # for which nothing waits
        ],
    )
    def test_data_that_job_would_refuse_is_refused(self, capsys, setenv, name, settings, values):
        setenv(SLIPWAY_DATA=name, **settings)
        refused(capsys, "bad-data-file", f"SLIPWAY_DATA: {name} ", *values)

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("folder", {}),
            ("image", {}),
            ("image", {"SLIPWAY_STAGE": "1"}),
            ("tar", {"SLIPWAY_STAGE": "1"}),
            ("text file", {"SLIPWAY_SCRIPT": "my train.py"}),
        ],
    )
    def test_data_that_job_accepts_is_submitted(self, capsys, setenv, name, settings):
        setenv(SLIPWAY_DATA=name, **settings)
        assert submit(capsys).err == ""

    @pytest.mark.parametrize("container", container_names())
    def test_squashfs_data_requires_container_runtime_that_mounts_images(self, capsys, monkeypatch, container):
        write_site(f'container = "{container}"')
        monkeypatch.setenv("SLIPWAY_DATA", "image")
        library = ROOT / "jobscripts" / "lib" / f"{container_of(container).library}.bash"
        if "\nimage_mount() {" in library.read_text():
            assert submit(capsys, site="mine.toml").err == ""
        else:
            said = refused(capsys, "bad-data-file", "SLIPWAY_DATA: image ", "unsquashfs", "tar", site="mine.toml")
            assert "USE_CONTAINER" not in said

    def test_squashfs_data_is_refused_at_site_without_containers(self, capsys, monkeypatch):
        write_site('container = "none"', 'venv = "local"', "downloads = true")
        monkeypatch.setenv("SLIPWAY_DATA", "image")
        refused(capsys, "bad-data-file", "SLIPWAY_DATA: image ", "USE_CONTAINER=1", "unsquashfs", site="mine.toml")


class TestBuilds:
    @pytest.mark.parametrize("spec", ["image_build", "venv_build"])
    def test_build_jobs_do_not_require_their_own_output(self, capsys, clone, login_node, spec):
        (clone / "slipway.sif").unlink()
        assert submit(capsys, spec=spec).err == ""
        assert f"--job-name={spec}" in recorded(login_node, "script")

    def test_build_jobs_refuse_arguments(self, capsys):
        words = ["--", "--epochs", "2"]
        refused(capsys, "unexpected-argument", "image_build", "--epochs 2", words=words, spec="image_build", code=2)


class TestSettings:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("USE_CONTAINER", "yes"),
            ("BACKEND", "mpi"),
            ("SLIPWAY_RANKS_PER_NODE", "a[$(id)]"),
            ("SLIPWAY_RANKS_PER_NODE", "0"),
            ("SLIPWAY_MAX_REQUEUES", "-1"),
            ("SLIPWAY_STAGE", "yes"),
            ("SLIPWAY_DEVICE", "gpu"),
            ("SLIPWAY_PREFLIGHT_SECONDS", "abc"),
            ("SLIPWAY_DATA", "a\nb"),
        ],
    )
    def test_invalid_setting_values_are_refused(self, capsys, monkeypatch, name, value):
        monkeypatch.setenv(name, value)
        refused(capsys, "bad-value", f"{name} ", f" {value!r}")

    def test_misspelled_setting_warns_and_nearest_is_suggested(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_IMGE", "x")
        err = submit(capsys).err
        assert_warning(err, "unknown-setting", "SLIPWAY_IMGE", "'SLIPWAY_IMAGE'")
        assert err.count("\n") == 1

    def test_empty_setting_means_default(self, capsys, monkeypatch):
        for name in SETTINGS:
            monkeypatch.setenv(name, "")
        assert submit(capsys).err == ""

    def test_backend_that_script_cannot_launch_is_refused(self, capsys, monkeypatch):
        monkeypatch.setenv("BACKEND", "horovod")
        assert submit(capsys).err == ""
        command = "`jobgen submit horovod-gloo --site example`"
        refused(capsys, "wrong-backend", "BACKEND=horovod", "single", command, spec="single")


class TestArguments:
    @pytest.mark.parametrize(
        ("site", "variable", "words", "slug", "values"),
        [
            ("example", "", ["--epoks", "3"], "unknown-flag", ["--epoks", "--epochs"]),
            ("pbs", "", ["--epoks", "3"], "unknown-flag", ["--epoks", "--epochs"]),
            ("example", "", ["--epochs", "many"], "bad-flag-value", ["--epochs ", "'many'", " 1"]),
            ("example", "", ["other.toml"], "unexpected-argument", ["'other.toml'"]),
            ("pbs", "--epoks 3", [], "unknown-flag", ["--epoks", "--epochs"]),
            ("pbs", "--epochs 3", ["--epochs", "4"], "flag-conflict", ["SLIPWAY_ARGS"]),
        ],
    )
    def test_invalid_trainer_arguments_are_refused(self, capsys, monkeypatch, *, site, variable, words, slug, values):
        monkeypatch.setenv("SLIPWAY_ARGS", variable)
        refused(capsys, slug, *values, words=["--", *words], site=site, code=2)

    def test_unclosed_quote_in_slipway_args_is_refused(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_ARGS", "--arch 'mlp")
        refused(capsys, "unclosed-quote", "SLIPWAY_ARGS", "--arch 'mlp", site="pbs")

    def test_user_script_arguments_are_not_checked(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_SCRIPT", __file__)
        submit(capsys, "--", "--epoks", "3")

    def test_selftest_arguments_are_checked(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_SCRIPT", __file__)
        refused(capsys, "unknown-flag", "--epoks", words=["--", "--epoks", "3"], spec="selftest", code=2)
