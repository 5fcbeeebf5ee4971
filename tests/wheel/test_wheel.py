"""The wheel on a login node: only the base install, on the oldest available Python, without torch or a clone."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from messages import assert_error

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Return the programs of an environment that holds only the wheel and its dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([_python(), "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv" / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    subprocess.run([*pip, "install", *folder.glob("slipway_hpc-*.whl")], check=True)
    return folder / "venv" / "bin"


def _python():
    """Return the oldest available Python; pyenv's shims on PATH only print how to install one."""
    found = [path for name in ("python3.9", "python3.10") if (path := shutil.which(name)) and _works(path)]
    return (found or [sys.executable])[0]


def _works(python):
    return subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0


def _run(*words, folder=ROOT, **variables):
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "SLIPWAY_")) and name not in {"USE_CONTAINER", "BACKEND"}
    }
    return subprocess.run(
        words, cwd=folder, env={**kept, **variables}, check=False, capture_output=True, text=True, timeout=120
    )


def _output(*words, **others):
    done = _run(*words, **others)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _body(script):
    """Return a script without the command that generates it, which names a path here and a name there."""
    head, _, rest = script.partition("\n# Generated:")
    return head + rest[rest.index("\n#SBATCH") :]


def test_base_install_has_no_torch(bare):
    assert _output(bare / "python", "-c", "import importlib.util; print(importlib.util.find_spec('torch'))") == "None\n"


def test_documented_install_commands_add_only_msgspec(tmp_path):
    """Unchanged, except for the folder that it makes."""
    pages = [(ROOT / "docs" / "start" / f"{name}.md").read_text(encoding="utf-8") for name in ("script", "pbs", "site")]
    found = {*re.findall(r"\$ (python3 -m venv .*)\n *\$ (.* pip install \.)\n", "".join(pages))}
    [command] = map(" && ".join, found)
    folder = tmp_path / ".venv-jobgen"
    command = command.replace(".venv-jobgen", str(folder)).replace("python3", str(_python()), 1)
    _output("bash", "-c", command)
    listed = json.loads(_output(folder / "bin" / "python", "-m", "pip", "list", "--format=json"))
    own = {entry["name"] for entry in listed} - {"pip", "setuptools", "wheel"}  # which venv brings along
    assert own - {"tomli", "typing_extensions"} == {"slipway-hpc", "msgspec"}
    assert _output(folder / "bin" / "jobgen", "render", "ddp", "--site", "example").startswith("#!")


def test_documented_definition_installs_wheel_for_sessions_in_another_image(bare, tmp_path):
    """Its wheel is built by the documented command; its %post is resolved here, in an environment with torch."""
    page = (ROOT / "docs" / "howto" / "other-images.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"(?m)^\$ (python3 -m pip wheel .*)$", page)
    command = command.replace("python3", str(bare / "python")).replace("PATH/TO/slipway", str(ROOT))
    _output("bash", "-c", command, folder=tmp_path)
    source, target, post = re.search(r"(?s)%files\n +(\S+) (\S+)\n\n%post\n(.*?)```", page).groups()
    post = post.replace("python3", sys.executable).replace(target, str(tmp_path / source))
    assert "slipway-hpc" in _output("sh", "-c", post.replace("pip install", "pip install --dry-run --no-index"))


def test_slipway_base_imports_without_torch_on_oldest_python(bare):
    """All of slipway.base, the only part of slipway that jobgen imports."""
    code = (
        "import importlib, pkgutil, sys, jobgen.cli, slipway.base as base\n"
        "names = [name for _, name, _ in pkgutil.walk_packages(base.__path__, 'slipway.base.')]\n"
        "print(len([importlib.import_module(name) for name in names]), sys.version_info[:2])"
    )
    assert int(_output(bare / "python", "-c", code).split()[0]) > 10


def test_jobgen_check_passes_in_clone(bare, table):
    assert _output(bare / "jobgen", "check") == ""
    installed = _output(bare / "python", "-m", "pip", "list", "--format=freeze").split()
    table("the base install", [[_output(bare / "python", "--version").strip(), *installed]])


class TestInEmptyFolder:
    def test_wheel_contains_specs_and_sites(self, bare, tmp_path):
        text = _output(bare / "jobgen", "render", "ddp", "--site", "example", folder=tmp_path)
        assert "\n# Generated:    jobgen render ddp --site example\n" in text
        here = _output(bare / "jobgen", "render", "ddp", "--site", "example")
        assert _body(text) == _body(here)
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        assert list(tmp_path.iterdir()) == []

    def test_standalone_script_contains_library(self, bare, tmp_path):
        text = _output(bare / "jobgen", "render", "ddp", "--site", "example", "--standalone", folder=tmp_path)
        assert "\n# Generated:    jobgen render ddp --site example --standalone\n" in text
        assert "\nopen_run_folder() {\n" in text
        assert "\nsource " not in text
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)

    def test_new_folder_has_script_and_readme(self, bare, tmp_path):
        assert _output(bare / "jobgen", "new", "mine", folder=tmp_path).startswith("cd mine\n")
        assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["README.md", "train.py"]

    def test_misspelled_site_error_suggests_site_detect(self, bare, tmp_path):
        done = _run(bare / "jobgen", "render", "ddp", "--site", "exampel", folder=tmp_path)
        assert done.returncode == 78
        command = "`jobgen site --detect --output exampel.toml`"
        assert_error(done.stderr, "unknown-name", "'exampel'", "'example'", "amd", command)

    def test_submit_sends_standalone_script_and_copies_configuration(self, bare, tmp_path):
        (tmp_path / "slipway.sif").touch()
        (tmp_path / "sbatch").write_text('#!/bin/bash\ncp -- "$2" submitted\necho 4711\n')
        (tmp_path / "sbatch").chmod(0o755)
        words = [bare / "jobgen", "submit", "ddp", "--site", "example"]
        path = f"{tmp_path}:/usr/bin:/bin"
        shown = _run(*words, "--dry-run", "--", "--epochs", "2", folder=tmp_path, PATH=path)
        assert shown.returncode == 0, shown.stderr
        assert "\nopen_run_folder() {\n" in shown.stdout
        first, *_, last = shown.stderr.splitlines()
        assert "digits.toml" in first
        assert last.endswith(": sbatch --parsable SCRIPT --epochs 2")
        assert not (tmp_path / "configs").exists()

        done = _run(*words, folder=tmp_path, PATH=path)
        assert (done.returncode, done.stdout) == (0, "4711\n")
        assert (tmp_path / "submitted").read_text() == shown.stdout
        assert (tmp_path / "configs" / "digits.toml").read_text() == (ROOT / "configs" / "digits.toml").read_text()

    def test_mistyped_trainer_flag_is_refused_without_torch(self, bare, tmp_path):
        (tmp_path / "slipway.sif").touch()
        done = _run(bare / "jobgen", "submit", "ddp", "--site", "example", "--", "--epoks", "2", folder=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert_error(done.stderr, "unknown-flag", "--epoks", "--epochs")

    @pytest.mark.parametrize("words", [["--help"], ["--epochs", "1"]])
    def test_trainer_reports_old_python_or_missing_torch(self, bare, tmp_path, words):
        done = _run(bare / "trainer", *words, folder=tmp_path)
        old = _output(bare / "python", "-c", "import sys; print(sys.version_info < (3, 11))") == "True\n"
        if words == ["--help"] and not old:
            assert (done.returncode, "--epochs" in done.stdout) == (0, True)
            return
        assert (done.returncode, done.stdout) == (78, "")
        slug, lacking = ("old-python", "3.11") if old else ("missing-package", "torch")
        assert_error(done.stderr, slug, lacking, "pip install '.[train]'")
        assert (done.stderr.startswith("trainer: "), done.stderr.count("\n")) == (True, 1)

    @pytest.mark.parametrize("spec", ["image_build", "venv_build"])
    def test_build_jobs_without_clone_are_refused(self, bare, tmp_path, spec):
        done = _run(bare / "jobgen", "submit", spec, "--site", "example", folder=tmp_path)
        assert done.returncode == 78
        assert done.stdout == ""
        assert_error(done.stderr, "no-clone", spec, "build/")

    def test_status_reads_run_folder_and_completion_is_printed(self, bare, tmp_path):
        (tmp_path / "runs" / "ddp-7" / "logs" / "1").mkdir(parents=True)
        assert re.match(r"run runs/ddp-7: .*\b1\b", _output(bare / "jobgen", "status", folder=tmp_path))
        assert "--standalone" in _output(bare / "jobgen", "completion", folder=tmp_path)
