"""jobgen submit: what it refuses before a job waits in a queue, what it hands over, and what it needs of a clone."""

import os
import shlex
import subprocess
import tarfile
from pathlib import Path

import pytest

from jobgen.cli import main
from jobgen.containers import container_names, container_of
from slipway.layout import SETTINGS

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


def refused(capsys, *words, code=78, **job):
    out, err = submit(capsys, *words, code=code, **job)
    assert out == ""
    assert err.count("\n") == 1, err
    return err


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
        ("inside", "name"), [("1", "SLIPWAY_IMAGE: slipway.sif"), ("0", "SLIPWAY_VENV: .venv/bin/p")]
    )
    def test_dry_run_shows_them_before_there_is_an_image_or_an_environment(
        self, capsys, empty, monkeypatch, inside, name
    ):
        (empty / "slipway.sif").unlink()
        monkeypatch.setenv("USE_CONTAINER", inside)
        out, err = submit(capsys, "--dry-run")
        assert "#SBATCH" in out
        assert f"jobgen: would be refused now: {name}" in err
        assert "would submit this with" in err

    @pytest.mark.usefixtures("clone")
    def test_dry_run_shows_the_script_and_the_command(self, capsys):
        out, err = submit(capsys, "--dry-run", "--", "--epochs", "2")
        assert out.startswith("#!/usr/bin/env bash")
        assert f"\ngiven SLIPWAY_LIB {Path.cwd() / 'jobscripts' / 'lib'}\n" in out
        assert err.endswith("jobgen: would submit this with: sbatch --parsable SCRIPT --epochs 2\n")

    @pytest.mark.usefixtures("clone")
    def test_dry_run_shows_every_setting_and_who_says_it(self, capsys, monkeypatch):
        monkeypatch.setenv("USE_CONTAINER", "0")
        settings = ["--set", "output=$SCRATCH/runs", "--set", "data=/set of $USER", "--set", "local_disk=$NOWHERE"]
        monkeypatch.setenv("USER", "me")
        monkeypatch.setenv("SCRATCH", "/scratch/me")
        monkeypatch.delenv("NOWHERE", raising=False)
        lines = submit(capsys, "--dry-run", *settings).err.splitlines()
        for line in (
            "USE_CONTAINER=0 (set here)",
            "SLIPWAY_OUTPUT=/scratch/me/runs (site example)",
            "SLIPWAY_DATA='/set of me' (site example)",
            "SLIPWAY_LOCAL_DISK=(by variables of the nodes) (site example)",
            "SLIPWAY_CONFIG=configs/digits.toml (spec ddp)",
            "SLIPWAY_IMAGE=slipway.sif (default)",
            "SLIPWAY_STAGE=0 (default)",
        ):
            assert f"jobgen: {line}" in lines
        faults = [line for line in lines if "would be refused now" in line]
        assert [fault.split(": ")[2] for fault in faults] == ["SLIPWAY_VENV", "SLIPWAY_DATA"]

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
        assert "SLIPWAY_SHRINK" in submit(capsys, "--dry-run").err

    @pytest.mark.usefixtures("clone")
    def test_only_asking_when_it_could_start(self, capsys, login_node):
        submit(capsys, "--test-only")
        assert (login_node / "arguments").read_text().startswith("--test-only\n")

    @pytest.mark.usefixtures("clone")
    def test_pbs_gets_the_arguments_as_a_setting(self, capsys):
        out, err = submit(capsys, "--dry-run", "--", "--arch", "mlp", site="pbs")
        assert err.endswith("jobgen: would submit this with: qsub -V SCRIPT\n")
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


class TestOutsideAClone:
    def test_it_is_the_standalone_script_with_the_configuration_beside(self, capsys, login_node, empty):
        err = submit(capsys).err
        assert err.startswith("jobgen: copied ")
        assert err.endswith("configs/digits.toml to configs/digits.toml: change it as you like\n")
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
        err = submit(capsys, "--dry-run").err
        assert err.splitlines()[0].startswith("jobgen: would copy ")
        assert not (empty / "configs").exists()

    @pytest.mark.parametrize(("spec", "program"), [("image_build", "build/image"), ("venv_build", "build/setup")])
    def test_jobs_that_build_need_a_clone(self, capsys, empty, spec, program):
        expected = f"jobgen: {spec} needs a clone of the project: there is no {program} in {empty}.\n"
        assert refused(capsys, spec=spec) == expected

    def test_the_remedy_for_a_missing_image_names_one_too(self, capsys, empty):
        (empty / "slipway.sif").unlink()
        assert "`jobgen submit image_build --site example` in a clone makes it" in refused(capsys)


class TestWhatIsMissing:
    @pytest.mark.parametrize(
        ("name", "others", "remedy"),
        [
            ("SLIPWAY_IMAGE", {}, "`jobgen submit image_build --site example` makes it, or set USE_CONTAINER=0"),
            (
                "SLIPWAY_VENV",
                {"USE_CONTAINER": "0"},
                "`jobgen submit venv_build --site example` makes it, or set USE_CONTAINER=1",
            ),
            ("SLIPWAY_CONFIG", {}, "see configs/"),
            ("SLIPWAY_SCRIPT", {}, "correct it"),
            ("SLIPWAY_DATA", {}, "correct it"),
        ],
    )
    @pytest.mark.usefixtures("clone")
    def test_it_is_named_before_it_waits_in_a_queue(self, capsys, monkeypatch, name, others, remedy):
        for key, value in {**others, name: "missing"}.items():
            monkeypatch.setenv(key, value)
        assert f"jobgen: {name}: missing" in (err := refused(capsys))
        assert f" is missing or cannot be read from here: {remedy}.\n" in err

    @pytest.mark.parametrize("name", ["SLIPWAY_CONFIG", "SLIPWAY_SCRIPT"])
    @pytest.mark.usefixtures("clone")
    def test_a_folder_is_no_file(self, capsys, monkeypatch, name):
        monkeypatch.setenv(name, "/")
        assert f"{name}: / is no file: " in refused(capsys)

    @pytest.mark.usefixtures("clone")
    def test_a_library_that_is_none(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_LIB", "configs")
        assert "configs/job.bash is missing or cannot be read from here: unset it, or name" in refused(capsys)

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
        assert "needs a clone of the project: there is no build/setup in" in refused(capsys, site="mine.toml")
        (empty / "build").symlink_to(ROOT / "build")
        submit(capsys, site="mine.toml")

    def test_room_for_a_configuration(self, capsys, empty):
        (empty / "configs").write_text("a file")
        assert "SLIPWAY_CONFIG: cannot write configs/digits.toml: File exists.\n" in submit(capsys, code=78).err

    @pytest.mark.usefixtures("clone")
    def test_a_scheduler(self, capsys, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setenv("PATH", "/nowhere")
            assert "no sbatch on this machine: submit on a login node" in refused(capsys)
        said = refused(capsys, "--", "--epochs", "3", spec="ddp-local", site="laptop")
        assert "site laptop has no scheduler: `jobgen render jobscripts/specs/ddp-local.toml --site " in said
        assert "/laptop.toml --output ddp.sh && bash ddp.sh --epochs 3` trains here.\n" in said
        said = refused(capsys, spec="dask")
        assert "dask is no job: `jobgen render jobscripts/specs/dask.toml --site " in said
        assert " --output dask.sh && bash dask.sh` trains here.\n" in said
        assert "--test-only: qsub has no such question" in refused(capsys, "--test-only", site="pbs")


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
        ("name", "settings", "why"),
        [
            (
                "image",
                {"USE_CONTAINER": "0", "SLIPWAY_VENV": "venv"},
                "a squashfs image, which only a container mounts",
            ),
            ("tar", {}, "a tar, which each node unpacks on its local disk: set SLIPWAY_STAGE=1.\n"),
            ("tar", {"SLIPWAY_STAGE": "0", "SLIPWAY_SCRIPT": "my train.py"}, "a tar, which each node unpacks"),
            ("text file", {"SLIPWAY_STAGE": "1"}, "neither a folder, a ZIP archive, a squashfs image nor a tar.\n"),
            ("fifo", {}, "neither a folder, a ZIP archive, a squashfs image nor a tar.\n"),  # for which nothing waits
        ],
    )
    def test_what_the_job_would_refuse_is_refused(self, capsys, monkeypatch, name, settings, why):
        for key, value in {"SLIPWAY_DATA": name, **settings}.items():
            monkeypatch.setenv(key, value)
        said = refused(capsys)
        assert said.startswith(f"jobgen: SLIPWAY_DATA: {name} is ")
        assert why in said

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
            assert "which the container runtime of this site does not mount" in refused(capsys, site="mine.toml")

    def test_a_site_without_containers(self, capsys, monkeypatch):
        text = (ROOT / "jobscripts" / "sites" / "example.toml").read_text()
        Path("mine.toml").write_text(f'container = "none"\nvenv = "local"\n{text}')
        monkeypatch.setenv("SLIPWAY_DATA", "image")
        assert "set USE_CONTAINER=1, or unpack it with unsquashfs" in refused(capsys, site="mine.toml")


class TestBuilds:
    @pytest.mark.parametrize("spec", ["image_build", "venv_build"])
    def test_they_need_nothing_that_they_make(self, capsys, clone, login_node, spec):
        (clone / "slipway.sif").unlink()
        assert submit(capsys, spec=spec).err == ""
        assert f"--job-name={spec}" in (login_node / "script").read_text()

    @pytest.mark.usefixtures("clone")
    def test_they_take_no_arguments(self, capsys):
        assert "image_build takes no arguments" in refused(capsys, "--", "--epochs", "2", spec="image_build", code=2)

    @pytest.mark.usefixtures("clone")
    def test_what_they_read_is_looked_at(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_VARIANT", "cdua")
        assert "no cdua.env in containers/pins. Did you mean 'cuda'?" in refused(capsys, spec="image_build")
        monkeypatch.setenv("SLIPWAY_VARIANT", "cpu")
        monkeypatch.setenv("SLIPWAY_WHEELHOUSE", "missing")
        assert "SLIPWAY_WHEELHOUSE: missing is missing" in refused(capsys, spec="venv_build")


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
        assert f"jobgen: {name} is {value!r}: it must be " in refused(capsys)

    @pytest.mark.parametrize("setting", [setting for setting in SETTINGS.values() if setting.old])
    def test_names_of_earlier_versions(self, capsys, monkeypatch, setting):
        monkeypatch.setenv(setting.old, "1")
        if setting.refuse_old:
            assert refused(capsys) == f"jobgen: {setting.old} is called {setting.name} now: set that instead.\n"
        else:
            expected = f"jobgen: set, but not read: {setting.old} (use {setting.name})\n"
            assert submit(capsys).err == expected

    def test_a_misspelt_setting_is_mentioned(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_IMGE", "x")
        assert submit(capsys).err == "jobgen: SLIPWAY_IMGE is no setting. Did you mean 'SLIPWAY_IMAGE'?\n"

    def test_an_empty_value_means_the_default(self, capsys, monkeypatch):
        for name in SETTINGS:
            monkeypatch.setenv(name, "")
        assert submit(capsys).err == ""

    def test_a_backend_that_the_script_cannot_launch(self, capsys, monkeypatch):
        monkeypatch.setenv("BACKEND", "horovod")
        assert submit(capsys).err == ""
        expected = "BACKEND=horovod: single launches single: `jobgen submit horovod-gloo --site "
        assert expected in refused(capsys, spec="single")


@pytest.mark.usefixtures("clone")
class TestArguments:
    @pytest.mark.parametrize("site", ["example", "pbs"])
    def test_a_mistyped_flag_of_the_trainer(self, capsys, site):
        err = refused(capsys, "--", "--epoks", "3", site=site, code=2)
        assert err == "jobgen: unknown flag --epoks; did you mean --epochs?\n"

    def test_an_impossible_value_and_a_stray_argument(self, capsys):
        assert "--epochs is 'many': it must be a whole number" in refused(capsys, "--", "--epochs", "many", code=2)
        assert "unexpected argument 'other.toml'" in refused(capsys, "--", "other.toml", code=2)

    def test_those_in_the_variable_are_looked_at_too(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_ARGS", "--epoks 3")
        assert "unknown flag --epoks" in refused(capsys, site="pbs", code=2)
        monkeypatch.setenv("SLIPWAY_ARGS", "--arch 'mlp")
        assert "No closing quotation" in refused(capsys, site="pbs")
        monkeypatch.setenv("SLIPWAY_ARGS", "--epochs 3")
        assert "unset SLIPWAY_ARGS" in refused(capsys, "--", "--epochs", "4", site="pbs", code=2)

    def test_those_of_a_users_own_script_are_its_own(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_SCRIPT", __file__)
        submit(capsys, "--", "--epoks", "3")

    def test_the_self_test_is_the_trainers(self, capsys, monkeypatch):
        monkeypatch.setenv("SLIPWAY_SCRIPT", __file__)
        assert "unknown flag --epoks" in refused(capsys, "--", "--epoks", "3", spec="selftest", code=2)
