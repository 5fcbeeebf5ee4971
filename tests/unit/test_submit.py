"""jobgen submit: what it refuses before a job waits in a queue, what it hands over, and what it needs of a clone."""

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
from jobgen.containers import container_names, container_of
from jobgen.owners import shared
from messages import assert_error, assert_warning, messages
from slipway.layout import SETTINGS
from slipway.slugs import SLUGS

ROOT = Path(__file__).resolve().parents[2]
RECORD = """#!/bin/bash
printf '%s\\n' "$@" >"$RECORD/arguments"
printenv >"$RECORD/environment"
cp -- "${!#}" "$RECORD/script" 2>/dev/null || cp -- "$2" "$RECORD/script"
echo 4711
"""


@pytest.fixture(autouse=True)
def login_node(tmp_path, monkeypatch):
    """Return a folder for records of sbatch and qsub, with no setting in the environment."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("sbatch", "qsub"):
        (bin_folder / name).write_text(RECORD)
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    monkeypatch.setenv("RECORD", str(tmp_path))
    for name in list(os.environ):
        if name.startswith("SLIPWAY_") or name in {"USE_CONTAINER", "BACKEND", "RUN_DIR", "DATA"}:
            monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Return a clone with an image in it, the working directory."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("jobscripts", "configs", "build", "containers"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "slipway.sif").touch()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """Return an empty folder with an image in it, the working directory."""
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / "slipway.sif").touch()
    monkeypatch.chdir(folder)
    return folder


def submit(capsys, *words, spec="ddp", site="example", code=0):
    assert main(["submit", spec, "--site", site, *words]) == code
    return capsys.readouterr()


def refused(capsys, slug, *values, words=(), code=78, **job):
    """Hold that nothing is submitted: one line, this error."""
    out, err = submit(capsys, *words, code=code, **job)
    assert_error(err, slug, *values)
    assert (out, err.count("\n"), err[:8]) == ("", 1, "jobgen: ")
    return messages(err)[0].text


def would_submit(err):
    """Return the command that a dry run names in its last line."""
    return err.splitlines()[-1].rpartition(": ")[2]


def environment(folder):
    text = (folder / "environment").read_text()
    return dict(line.partition("=")[::2] for line in text.splitlines())


def given(folder):
    """Return the settings that the submitted script sets where its environment does not."""
    text = (folder / "script").read_text()
    lines = text[text.index("\ngiven() {") : text.index("\n\n# The run folder")]
    command = ["env", "-i", "/bin/bash", "-euc", f"{lines}\nexec /usr/bin/env --null"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(pair.partition("=")[::2] for pair in done.stdout.split("\0") if pair)


class TestWhatIsSubmitted:
    @pytest.mark.parametrize(
        ("inside", "fault"),
        [("1", ("no-image", "SLIPWAY_IMAGE: slipway.sif")), ("0", ("no-environment", "SLIPWAY_VENV: .venv/bin/p"))],
    )
    def test_dry_run_shows_them_before_there_is_an_image_or_an_environment(
        self, capsys, empty, monkeypatch, inside, fault
    ):
        (empty / "slipway.sif").unlink()
        monkeypatch.setenv("USE_CONTAINER", inside)
        out, err = submit(capsys, "--dry-run", code=78)
        assert "#SBATCH" in out
        assert_error(err, *fault)
        assert would_submit(err) == "sbatch --parsable SCRIPT"

    @pytest.mark.usefixtures("clone")
    def test_dry_run_shows_the_script_and_the_command(self, capsys):
        out, err = submit(capsys, "--dry-run", "--", "--epochs", "2")
        assert out.startswith("#!/usr/bin/env bash")
        assert f"\ngiven SLIPWAY_LIB {Path.cwd() / 'jobscripts' / 'lib'}\n" in out
        assert would_submit(err) == "sbatch --parsable SCRIPT --epochs 2"

    @pytest.mark.usefixtures("clone")
    def test_dry_run_shows_every_setting_and_who_says_it(self, capsys, monkeypatch):
        monkeypatch.setenv("USE_CONTAINER", "0")
        settings = ["--set", "output=$SCRATCH/runs", "--set", "data=/set of $USER", "--set", "local_disk=$NOWHERE"]
        monkeypatch.setenv("USER", "me")
        monkeypatch.setenv("SCRATCH", "/scratch/me")
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

    # once: with SBATCH_EXPORT=NONE every setting was lost, and the job ran in the image
    @pytest.mark.parametrize("site", ["example", "pbs"])
    def test_settings_are_in_the_script_wherever_the_environment_goes(
        self, capsys, login_node, monkeypatch, clone, site
    ):
        (clone / "my set").mkdir()
        monkeypatch.setenv("SLIPWAY_DATA", "my set")
        monkeypatch.setenv("SLIPWAY_STAGE", "1")
        submit(capsys, site=site)
        library = str(clone / "jobscripts" / "lib")
        assert given(login_node).items() >= {
            "SLIPWAY_DATA": "my set", "SLIPWAY_STAGE": "1", "SLIPWAY_LIB": library
        }.items()  # fmt: skip

    # once: no further node, so that the job had one fewer to train on, and ended with the first that it lost
    @pytest.mark.usefixtures("clone")
    def test_spare_nodes_are_asked_for(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_SPARES", "1")
        out = submit(capsys, "--dry-run", "--set", "nodes=4").out
        assert ("#SBATCH --nodes=5" in out, "#SBATCH --no-kill" in out) == (True, True)
        assert "select=5:" in submit(capsys, "--dry-run", "--set", "nodes=4", site="pbs").out
        monkeypatch.setenv("SLIPWAY_SPARES", "0")
        monkeypatch.setenv("SLIPWAY_SHRINK", "1")
        out = submit(capsys, "--dry-run", "--set", "spares=2").out
        assert ("#SBATCH --nodes=2" in out, "#SBATCH --no-kill" in out) == (True, True)
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
    @pytest.mark.usefixtures("clone")
    def test_a_dry_run_ends_as_the_submission_would(self, capsys, monkeypatch, slug, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        code = SLUGS[slug].exit_code if slug else 0
        for dry in ([], ["--dry-run"]):
            found = main(["submit", "ddp", "--site", "example", *dry])
            err = capsys.readouterr().err
            assert (found, [each.slug for each in messages(err)]) == (code, [slug] if slug else []), dry

    def test_a_dry_run_sees_that_there_is_no_room_for_a_configuration(self, capsys, empty):
        (empty / "configs").write_text("a file")
        assert_error(submit(capsys, "--dry-run", code=78).err, "cannot-write", "SLIPWAY_CONFIG", "configs/digits.toml")

    @pytest.mark.usefixtures("clone")
    def test_only_asking_when_it_could_start(self, capsys, login_node):
        submit(capsys, "--test-only")
        assert (login_node / "arguments").read_text().startswith("--test-only\n")

    @pytest.mark.usefixtures("clone")
    def test_pbs_gets_the_arguments_as_a_setting(self, capsys):
        out, err = submit(capsys, "--dry-run", "--", "--arch", "mlp", site="pbs")
        assert would_submit(err) == "qsub -V SCRIPT"
        assert "\ngiven SLIPWAY_ARGS '--arch mlp'\n" in out

    def test_in_a_clone_it_is_the_script_alone_with_the_path_of_the_library(self, capsys, login_node, clone):
        assert submit(capsys, "--", "--epochs", "2").out == ""
        arguments = (login_node / "arguments").read_text().splitlines()
        assert arguments[0] == "--parsable"
        assert arguments[1].endswith("/ddp.job")
        assert not Path(arguments[1]).exists()
        assert arguments[2:] == ["--epochs", "2"]
        assert given(login_node)["SLIPWAY_LIB"] == str(clone / "jobscripts" / "lib")

    def test_a_library_of_the_site_wins(self, capsys, login_node, empty, monkeypatch):
        (empty / "site-lib").symlink_to(ROOT / "jobscripts" / "lib")
        monkeypatch.setenv("SLIPWAY_LIB", "site-lib")
        submit(capsys)
        assert given(login_node)["SLIPWAY_LIB"] == str(empty / "site-lib")
        assert "--standalone" not in (login_node / "script").read_text()

    @pytest.mark.parametrize("hostile", ["a,b", "it's", 'a "b"', "$(touch x)", "ü"])
    @pytest.mark.usefixtures("clone")
    def test_arguments_of_a_pbs_job_arrive_as_they_are(self, capsys, login_node, monkeypatch, hostile):
        monkeypatch.setenv("SLIPWAY_SCRIPT", __file__)
        submit(capsys, "--", hostile, "-x", site="pbs")
        assert (login_node / "arguments").read_text().splitlines()[0] == "-V"
        assert shlex.split(given(login_node)["SLIPWAY_ARGS"]) == [hostile, "-x"]

    @pytest.mark.usefixtures("clone")
    def test_what_a_job_exports_does_not_reach_the_jobs_that_it_submits(self, capsys, login_node, monkeypatch):
        monkeypatch.setenv("RUN_DIR", "/runs/ddp-1")
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
        monkeypatch.setenv("MASTER_PORT", "29500")
        monkeypatch.setenv("SLIPWAY_EXPORTED", "\nRUN_DIR=/runs/ddp-1\nOMP_NUM_THREADS=4\nMASTER_PORT=29500\n")
        submit(capsys)
        found = environment(login_node)
        assert not {"RUN_DIR", "MASTER_PORT", "SLIPWAY_EXPORTED"} & found.keys()
        assert found["OMP_NUM_THREADS"] == "7"  # set anew since

    # once: an srun of the new job took SLURM_CPU_BIND of the one around: all ranks on one core
    @pytest.mark.usefixtures("clone")
    def test_what_slurm_says_of_the_job_around_does_not_reach_them(self, capsys, login_node, monkeypatch):
        around = {"SLURM_CPU_BIND": "mask_cpu:0x1", "SLURM_ARRAY_TASK_ID": "3", "SLURM_GPUS_PER_TASK": "1"}
        kept = {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "x", "SLURM_MPI_TYPE": "pmi2"}
        for name, value in {**around, **kept, "ENVIRONMENT": "BATCH"}.items():
            monkeypatch.setenv(name, value)
        submit(capsys)  # on a login node: they are the user's
        assert around.items() <= environment(login_node).items()
        monkeypatch.setenv("SLURM_JOB_ID", "4711")
        monkeypatch.setenv("PBS_ARRAY_INDEX", "3")  # of no job of PBS
        submit(capsys)
        found = environment(login_node)
        assert not {*around, "ENVIRONMENT", "SLURM_JOB_ID", "SLURM_MPI_TYPE"} & found.keys()
        assert {"SLURM_CONF", "SBATCH_ACCOUNT", "PBS_ARRAY_INDEX"} <= found.keys()


class TestOutsideAClone:
    def test_it_is_the_standalone_script_with_the_configuration_beside(self, capsys, login_node, empty):
        err = submit(capsys).err
        assert re.findall(r"\S*configs/digits\.toml", err)[1:] == ["configs/digits.toml"]
        assert err.count("\n") == 1
        assert (empty / "configs" / "digits.toml").read_text() == (ROOT / "configs" / "digits.toml").read_text()
        text = (login_node / "script").read_text()
        assert "--standalone" in text
        assert "\nopen_run_folder() {\n" in text
        assert "SLIPWAY_LIB" not in environment(login_node)

    def test_a_configuration_that_is_there_stays(self, capsys, empty):
        (empty / "configs").mkdir()
        (empty / "configs" / "digits.toml").write_text("# mine\n")
        assert submit(capsys).err == ""
        assert (empty / "configs" / "digits.toml").read_text() == "# mine\n"

    def test_a_dry_run_writes_nothing(self, capsys, empty):
        assert "configs/digits.toml" in submit(capsys, "--dry-run").err.splitlines()[0]
        assert not (empty / "configs").exists()

    @pytest.mark.parametrize(("spec", "program"), [("image_build", "build/image"), ("venv_build", "build/setup")])
    def test_jobs_that_build_need_a_clone(self, capsys, empty, spec, program):
        refused(capsys, "no-clone", spec, program, empty, spec=spec)

    def test_the_remedy_for_a_missing_image_names_one_too(self, capsys, empty):
        (empty / "slipway.sif").unlink()
        refused(capsys, "no-image", "`jobgen submit image_build --site example`", "clone")


class TestWhatIsMissing:
    @pytest.mark.parametrize(
        ("name", "slug", "remedy"),
        [
            ("SLIPWAY_IMAGE", "no-image", ["`jobgen submit image_build --site example`", "USE_CONTAINER=0"]),
            (
                "SLIPWAY_VENV",
                "no-environment",
                ["`jobgen submit venv_build --site example`", "USE_CONTAINER=1"],
            ),
            ("SLIPWAY_CONFIG", "no-script", ["configs/"]),
            ("SLIPWAY_SCRIPT", "no-script", []),
            ("SLIPWAY_DATA", "no-data", []),
        ],
    )
    @pytest.mark.usefixtures("clone")
    def test_it_is_named_before_it_waits_in_a_queue(self, capsys, monkeypatch, name, slug, remedy):
        monkeypatch.setenv(name, "missing")
        if name == "SLIPWAY_VENV":
            monkeypatch.setenv("USE_CONTAINER", "0")
        refused(capsys, slug, f"{name}: missing", *remedy)

    @pytest.mark.parametrize("name", ["SLIPWAY_CONFIG", "SLIPWAY_SCRIPT"])
    @pytest.mark.usefixtures("clone")
    def test_a_folder_is_no_file(self, capsys, monkeypatch, name):
        monkeypatch.setenv(name, "/")
        refused(capsys, "no-script", f"{name}: / ")

    @pytest.mark.usefixtures("clone")
    def test_a_library_that_is_none(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_LIB", "configs")
        refused(capsys, "no-library", "SLIPWAY_LIB", "/configs/job.bash ")

    # once: tracebacks; root may read all
    @pytest.mark.parametrize(
        ("method", "name"),
        [
            ("iterdir", "SLIPWAY_LIB"),
            ("is_dir", "SLIPWAY_LIB"),
            ("exists", "SLIPWAY_CONFIG"),
            ("is_file", "SLIPWAY_RUN_DIR"),
        ],
    )
    def test_a_folder_that_may_not_be_listed_or_entered(self, capsys, clone, monkeypatch, method, name):
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

    @pytest.mark.usefixtures("clone")
    def test_a_library_that_others_can_write_or_own(self, capsys, monkeypatch):
        Path("jobscripts").unlink()
        shutil.copytree(ROOT / "jobscripts", "jobscripts")
        library = Path("jobscripts", "lib").resolve()
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

    # once: refused under umask 002, where it is the default since each user has a group
    @pytest.mark.usefixtures("clone")
    def test_a_library_that_a_private_group_can_write(self, capsys, login_node, monkeypatch):
        Path("jobscripts").unlink()
        shutil.copytree(ROOT / "jobscripts", "jobscripts")
        library = Path("jobscripts", "lib").resolve()
        user, group = (12345, 12346) if os.getuid() == 0 else (os.getuid(), os.getgid())  # root has none
        file = library / "job.bash"
        for path in (library, file):
            os.chown(path, user, group)
            path.chmod(path.stat().st_mode | 0o020)
        monkeypatch.setenv("SLIPWAY_LIB", str(library))
        monkeypatch.setattr(pwd, "getpwuid", lambda _: pwd.struct_passwd(("ann", "x", user, group, "", "/", "")))
        for name, members, private in (("ann", [], True), ("ann", ["ann", "bob"], False), ("team", [], False)):
            monkeypatch.setattr(grp, "getgrgid", lambda _, row=(name, "x", group, members): grp.struct_group(row))
            if private:
                submit(capsys)
            else:
                refused(capsys, "writable-by-others", library, group, f"chmod -R go-w {library}")
        monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group(("ann", "x", group, [])))
        getent = login_node / "bin" / "getent"
        for listed, private in (
            (f"echo +::::::; echo bob:x:{user + 1}:{group + 1}::/:", True),
            (f"echo +::::::; echo bob:x:{user + 1}:{group}::/:", False),
            ("exit 3", True),
        ):
            getent.write_text(f"#!/bin/sh\n{listed}\n")
            getent.chmod(0o755)
            submit(capsys) if private else refused(capsys, "writable-by-others", library, group)

        # once: a directory that lists 100,000 users for minutes
        for listed, refusals in ((None, 0), (f"bob:x:{user + 1}:{group}::/:".encode(), 1)):

            def silent(words, _listed=listed, **options):
                raise subprocess.TimeoutExpired(words, options["timeout"], _listed)

            with monkeypatch.context() as slow:
                slow.setattr("jobgen.owners.subprocess.run", silent)
                assert len([*shared([library], trusted="", owner=user)]) == refusals
        getent.write_text(f"#!/bin/sh\necho bob:x:{user + 1}:{group}::/:\n")
        monkeypatch.setenv("SLIPWAY_TRUSTED_FOLDER", str(library.parent))
        submit(capsys)
        monkeypatch.setenv("SLIPWAY_TRUSTED_FOLDER", str(library / "job"))
        refused(capsys, "writable-by-others", library)
        monkeypatch.setenv("SLIPWAY_TRUSTED_FOLDER", "jobscripts")
        refused(capsys, "bad-value", "SLIPWAY_TRUSTED_FOLDER")

    @pytest.mark.usefixtures("clone")
    def test_a_run_that_is_continued_has_kept_its_own_settings(self, capsys, login_node, monkeypatch):
        (login_node / "run").mkdir()
        (login_node / "run" / "job.sh").touch()
        monkeypatch.setenv("SLIPWAY_RUN_DIR", str(login_node / "run"))
        Path("slipway.sif").unlink()
        submit(capsys)

    @pytest.mark.usefixtures("clone")
    def test_a_clone_to_make_an_environment_from(self, capsys, monkeypatch, empty):
        monkeypatch.setenv("USE_CONTAINER", "0")
        text = (ROOT / "jobscripts" / "sites" / "example.toml").read_text()
        Path("mine.toml").write_text(f'venv = "local"\n{text}')
        monkeypatch.setenv("SLIPWAY_WHEELHOUSE", str(empty))
        refused(capsys, "no-clone", "example", "build/setup", empty, site="mine.toml")
        (empty / "build").symlink_to(ROOT / "build")
        submit(capsys, site="mine.toml")
        monkeypatch.setenv("SLIPWAY_WHEELHOUSE", "missing")
        refused(capsys, "no-wheelhouse", "SLIPWAY_WHEELHOUSE: missing ", "`make wheelhouse`", site="mine.toml")
        monkeypatch.delenv("SLIPWAY_WHEELHOUSE")
        values = ("SLIPWAY_VENV=local", "SLIPWAY_WHEELHOUSE", "downloads = true")
        refused(capsys, "no-wheelhouse", *values, "example", "`make wheelhouse`", site="mine.toml")
        Path("mine.toml").write_text(f'venv = "local"\ndownloads = true\n{text}')
        submit(capsys, site="mine.toml")

    def test_room_for_a_configuration(self, capsys, empty):
        (empty / "configs").write_text("a file")
        values = ("SLIPWAY_CONFIG", "configs/digits.toml", os.strerror(errno.EEXIST))
        assert_error(submit(capsys, code=78).err, "cannot-write", *values)

    @pytest.mark.usefixtures("clone")
    def test_a_scheduler(self, capsys, monkeypatch):
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


@pytest.mark.usefixtures("clone")
class TestData:
    """In the words of the job itself: tests/stubrun/test_data.py."""

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
    def test_what_the_job_would_refuse_is_refused(self, capsys, monkeypatch, name, settings, values):
        for key, value in {"SLIPWAY_DATA": name, **settings}.items():
            monkeypatch.setenv(key, value)
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
    def test_what_it_would_take_is_submitted(self, capsys, monkeypatch, name, settings):
        for key, value in {"SLIPWAY_DATA": name, **settings}.items():
            monkeypatch.setenv(key, value)
        assert submit(capsys).err == ""

    @pytest.mark.parametrize("container", container_names())
    def test_a_container_runtime_that_mounts_none(self, capsys, monkeypatch, container):
        text = (ROOT / "jobscripts" / "sites" / "example.toml").read_text()
        Path("mine.toml").write_text(f'container = "{container}"\n{text}')
        monkeypatch.setenv("SLIPWAY_DATA", "image")
        library = ROOT / "jobscripts" / "lib" / f"{container_of(container).library}.bash"
        if "\nimage_mount() {" in library.read_text():
            assert submit(capsys, site="mine.toml").err == ""
        else:
            said = refused(capsys, "bad-data-file", "SLIPWAY_DATA: image ", "unsquashfs", "tar", site="mine.toml")
            assert "USE_CONTAINER" not in said

    def test_a_site_without_containers(self, capsys, monkeypatch):
        text = (ROOT / "jobscripts" / "sites" / "example.toml").read_text()
        Path("mine.toml").write_text(f'container = "none"\nvenv = "local"\ndownloads = true\n{text}')
        monkeypatch.setenv("SLIPWAY_DATA", "image")
        refused(capsys, "bad-data-file", "SLIPWAY_DATA: image ", "USE_CONTAINER=1", "unsquashfs", site="mine.toml")


class TestBuilds:
    @pytest.mark.parametrize("spec", ["image_build", "venv_build"])
    def test_they_need_nothing_that_they_make(self, capsys, clone, login_node, spec):
        (clone / "slipway.sif").unlink()
        assert submit(capsys, spec=spec).err == ""
        assert f"--job-name={spec}" in (login_node / "script").read_text()

    @pytest.mark.usefixtures("clone")
    def test_they_take_no_arguments(self, capsys):
        words = ["--", "--epochs", "2"]
        refused(capsys, "unexpected-argument", "image_build", "--epochs 2", words=words, spec="image_build", code=2)

    @pytest.mark.usefixtures("clone")
    def test_what_they_read_is_looked_at(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_VARIANT", "cdua")
        values = ("SLIPWAY_VARIANT", "cdua.env", "containers/pins", "'cuda'")
        refused(capsys, "unknown-name", *values, spec="image_build")
        monkeypatch.setenv("SLIPWAY_VARIANT", "cpu")
        monkeypatch.setenv("SLIPWAY_WHEELHOUSE", "missing")
        refused(capsys, "no-wheelhouse", "SLIPWAY_WHEELHOUSE: missing ", "`make wheelhouse`", spec="venv_build")


@pytest.mark.usefixtures("clone")
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
    def test_values_that_no_setting_may_have(self, capsys, monkeypatch, name, value):
        monkeypatch.setenv(name, value)
        refused(capsys, "bad-value", f"{name} ", f" {value!r}")

    @pytest.mark.parametrize("setting", [setting for setting in SETTINGS.values() if setting.old])
    def test_names_of_earlier_versions(self, capsys, monkeypatch, setting):
        monkeypatch.setenv(setting.old, "1")
        if setting.refuse_old:
            assert re.findall(r"\b[A-Z_]{4,}\b", refused(capsys, "old-name")) == [setting.old, setting.name]
        else:
            err = submit(capsys).err
            assert_warning(err, "ignored-variable", f"{setting.old} ", setting.name)
            assert err.count("\n") == 1

    def test_a_misspelt_setting_is_mentioned(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_IMGE", "x")
        err = submit(capsys).err
        assert_warning(err, "unknown-setting", "SLIPWAY_IMGE", "'SLIPWAY_IMAGE'")
        assert err.count("\n") == 1

    def test_an_empty_value_means_the_default(self, capsys, monkeypatch):
        for name in SETTINGS:
            monkeypatch.setenv(name, "")
        assert submit(capsys).err == ""

    def test_a_backend_that_the_script_cannot_launch(self, capsys, monkeypatch):
        monkeypatch.setenv("BACKEND", "horovod")
        assert submit(capsys).err == ""
        command = "`jobgen submit horovod-gloo --site example`"
        refused(capsys, "wrong-backend", "BACKEND=horovod", "single", command, spec="single")


@pytest.mark.usefixtures("clone")
class TestArguments:
    @pytest.mark.parametrize("site", ["example", "pbs"])
    def test_a_mistyped_flag_of_the_trainer(self, capsys, site):
        refused(capsys, "unknown-flag", "--epoks", "--epochs", words=["--", "--epoks", "3"], site=site, code=2)

    def test_an_impossible_value_and_a_stray_argument(self, capsys):
        refused(capsys, "bad-flag-value", "--epochs ", "'many'", " 1", words=["--", "--epochs", "many"], code=2)
        refused(capsys, "unexpected-argument", "'other.toml'", words=["--", "other.toml"], code=2)

    def test_those_in_the_variable_are_looked_at_too(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_ARGS", "--epoks 3")
        refused(capsys, "unknown-flag", "--epoks", "--epochs", site="pbs", code=2)
        monkeypatch.setenv("SLIPWAY_ARGS", "--arch 'mlp")
        refused(capsys, "unclosed-quote", "SLIPWAY_ARGS", "--arch 'mlp", site="pbs")
        monkeypatch.setenv("SLIPWAY_ARGS", "--epochs 3")
        refused(capsys, "flag-conflict", "SLIPWAY_ARGS", words=["--", "--epochs", "4"], site="pbs", code=2)

    def test_those_of_a_users_own_script_are_its_own(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_SCRIPT", __file__)
        submit(capsys, "--", "--epoks", "3")

    def test_the_self_test_is_the_trainers(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_SCRIPT", __file__)
        refused(capsys, "unknown-flag", "--epoks", words=["--", "--epoks", "3"], spec="selftest", code=2)
