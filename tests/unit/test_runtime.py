"""jobgen.run.runtime: the image or environment of a program, and its checks on the login node."""

import subprocess
import sys
from pathlib import Path

import pytest

from jobgen.base.errors import UsageError
from jobgen.render.files import job_of
from jobgen.run.runtime import check_imports, check_program, choose_runtime, module_file
from jobgen.run.sharing import EXPORTS, MOUNTS, _this_machine
from messages import assert_names, messages, refused

NO_CONTAINER = ["container=none"]


@pytest.fixture(autouse=True)
def shared_disk(monkeypatch):
    """Let all files be on a disk that nodes share: those of tests are in /tmp."""
    mountinfo = {MOUNTS: "40 1 0:40 / / rw - nfs4 head:/ rw\n26 40 0:26 / /memory rw - tmpfs tmpfs rw\n", EXPORTS: ""}
    monkeypatch.setattr("jobgen.run.sharing._text", mountinfo.get)
    _this_machine.cache_clear()
    yield
    _this_machine.cache_clear()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder of submission."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    """Return a virtual environment with a torch and an extra package that cannot be imported."""
    path = tmp_path_factory.mktemp("environments") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    for name in ("torch", "extra"):
        package = next(path.glob("lib/python*/site-packages")) / name
        package.mkdir()
        (package / "__init__.py").write_text("raise SystemExit(3)\n")
    return path


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Return a virtual environment without packages."""
    path = tmp_path_factory.mktemp("environments") / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    return path


def fake(path):
    """Create a folder with an executable bin/python, and return its path."""
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to(sys.executable)
    return str(path)


def list_environments(home, *folders):
    (home / ".conda").mkdir(exist_ok=True)
    (home / ".conda" / "environments.txt").write_text("".join(f"{folder}\n" for folder in folders))


def chosen(environment=None, *settings, site="example", **flags):
    job = job_of("ddp-local" if site == "laptop" else "ddp", site, list(settings))
    return choose_runtime(job, environment or {}, **flags)


class TestFlags:
    def test_image_sets_container_and_image(self, folder):
        (folder / "mine.sif").touch()
        found = chosen(image="mine.sif")
        assert found == ({"USE_CONTAINER": "1", "SLIPWAY_IMAGE": "mine.sif"}, "image mine.sif")
        assert chosen(None, *NO_CONTAINER, image="mine.sif").settings == {
            "USE_CONTAINER": "1",
            "SLIPWAY_IMAGE": "mine.sif",
        }

    def test_flag_overrides_environment_variables_and_active_environment(self, folder):
        (folder / "mine.sif").touch()
        environment = {"USE_CONTAINER": "0", "SLIPWAY_IMAGE": "other", "VIRTUAL_ENV": fake(folder / "active")}
        assert chosen(environment, image="mine.sif").settings == {"USE_CONTAINER": "1", "SLIPWAY_IMAGE": "mine.sif"}
        assert chosen(environment, venv=fake(folder / "b")).settings["SLIPWAY_VENV"] == str(folder / "b")

    def test_image_in_registry_is_accepted_only_by_runtimes_that_pull(self, folder):
        name = "docker://nvcr.io#nvidia/pytorch"
        assert chosen(None, "container=pyxis", image=name).settings == {"USE_CONTAINER": "1", "SLIPWAY_IMAGE": name}
        with refused("image-not-local", "--image", name, code=78):
            chosen(image=name)

    def test_venv_sets_folder(self, folder):
        assert chosen(venv=fake(folder / "v")) == (
            {"USE_CONTAINER": "0", "SLIPWAY_VENV": f"{folder}/v"},
            f"environment {folder}/v (--venv)",
        )
        found = chosen(None, *NO_CONTAINER, f"venv={folder}/v", venv=f"{folder}/v")
        assert found.settings == {"USE_CONTAINER": "0", "SLIPWAY_VENV": f"{folder}/v"}, "a continued run may differ"

    @pytest.mark.parametrize("value", ["modules", "local"])
    def test_venv_accepts_values_of_setting(self, folder, value):
        assert chosen(venv=value).settings == {"USE_CONTAINER": "0", "SLIPWAY_VENV": value}

    def test_conda_name_is_looked_up_in_list_of_conda(self, folder):
        list_environments(folder, fake(folder / "envs" / "old"), fake(folder / "envs" / "deep"), folder / "envs" / "no")
        found = chosen({"HOME": str(folder)}, conda="deep")
        assert found.settings == {"USE_CONTAINER": "0", "SLIPWAY_VENV": "conda:deep"}
        assert_names(found.line, f"{folder}/envs/deep")
        with refused("no-environment", "dep", "'deep'", "deep, old", code=78):
            chosen({"HOME": str(folder)}, conda="dep")
        with refused("no-environment", "deep", code=78):
            chosen({"HOME": str(folder / "nowhere")}, conda="deep")

    def test_several_flags_conflict(self, folder):
        with refused("flag-conflict", "--image", "--conda", code=2) as caught:
            chosen(image="a.sif", conda="b")
        assert isinstance(caught.value, UsageError)

    @pytest.mark.parametrize("flag", ["image", "venv", "conda"])
    @pytest.mark.parametrize("value", ["", "a\nb"])
    def test_invalid_value_is_a_usage_error(self, folder, flag, value):
        with refused("bad-flag-value", f"--{flag}", code=2):
            chosen(**{flag: value})

    def test_missing_file_or_folder_is_refused(self, folder):
        with refused("no-image", "--image", "gone.sif", code=78):
            chosen(image="gone.sif")
        with refused("no-environment", "--venv", "gone/bin/python", code=78):
            chosen(venv="gone")


class TestOrder:
    @pytest.mark.parametrize(
        ("environment", "line"),
        [
            ({"USE_CONTAINER": "1"}, "image slipway.sif"),
            ({"USE_CONTAINER": "0"}, "environment .venv"),
            ({"SLIPWAY_IMAGE": "a.sif"}, "image a.sif"),
            ({"USE_CONTAINER": "0", "SLIPWAY_VENV": "/v"}, "environment /v"),
        ],
    )
    def test_environment_variables_decide_as_for_submit(self, folder, environment, line):
        assert chosen({**environment, "VIRTUAL_ENV": fake(folder / "active")}) == ({}, line)

    def test_image_of_site_precedes_active_environment(self, folder):
        (folder / "slipway.sif").touch()
        environment = {"VIRTUAL_ENV": fake(folder / "active")}
        assert chosen(environment) == ({}, "image slipway.sif")
        assert chosen(environment, *NO_CONTAINER).settings["SLIPWAY_VENV"] == f"{folder}/active"

    def test_image_that_is_a_name_is_used_without_a_check(self, folder):
        environment = {"VIRTUAL_ENV": fake(folder / "active")}
        found = chosen(environment, "container=podman", "image=docker://a/b")
        assert found == ({}, "image docker://a/b")

    def test_image_at_variable_of_nodes_is_used_without_a_check(self, folder):
        assert chosen({"VIRTUAL_ENV": fake(folder / "active")}, "image=$ON_NODES_ONLY/a.sif").settings == {}

    def test_active_environment_is_used_without_image(self, folder):
        venv, conda = fake(folder / "active"), fake(folder / "conda")
        fake(folder / ".venv")
        assert chosen({"VIRTUAL_ENV": venv, "CONDA_PREFIX": conda}) == (
            {"USE_CONTAINER": "0", "SLIPWAY_VENV": venv},
            f"environment {venv} (active)",
        )
        assert chosen({"CONDA_PREFIX": conda}).settings["SLIPWAY_VENV"] == conda

    # regression: an environment with only jobgen hid a usable one
    def test_active_environment_without_torch_is_skipped_for_that_of_site(self, folder, bare, venv):
        (folder / ".venv").symlink_to(venv)
        found = chosen({"VIRTUAL_ENV": str(bare)})
        assert found.settings == {"USE_CONTAINER": "0"}
        assert_names(found.line, "environment .venv (site example)", f"{bare} has no torch")
        for name in ("modules", "local", "$ON_NODES_ONLY/venv"):
            assert chosen({"VIRTUAL_ENV": str(bare)}, f"venv={name}").settings == {"USE_CONTAINER": "0"}

    def test_active_conda_environment_replaces_virtual_one_without_torch(self, folder, bare, venv):
        (folder / ".venv").symlink_to(bare)
        found = chosen({"VIRTUAL_ENV": str(bare), "CONDA_PREFIX": str(venv)})
        assert found.settings == {"USE_CONTAINER": "0", "SLIPWAY_VENV": str(venv)}
        assert_names(found.line, f"environment {venv} (active)", f"{bare} has no torch")

    def test_active_environment_stays_if_it_has_torch_or_none_has(self, folder, bare, venv):
        (folder / ".venv").symlink_to(bare)
        expected = {"USE_CONTAINER": "0", "SLIPWAY_VENV": str(venv)}
        assert chosen({"VIRTUAL_ENV": str(venv)}) == (expected, f"environment {venv} (active)")
        found = chosen({"VIRTUAL_ENV": str(bare), "CONDA_PREFIX": str(bare)})
        assert found == ({"USE_CONTAINER": "0", "SLIPWAY_VENV": str(bare)}, f"environment {bare} (active)")
        assert chosen({"VIRTUAL_ENV": str(folder / ".venv")}).settings["SLIPWAY_VENV"] == f"{folder}/.venv"

    def test_active_environment_completed_by_modules_is_not_skipped(self, folder, venv):
        (folder / "v" / "bin").mkdir(parents=True)
        (folder / "v" / "bin" / "python").write_text("#!/bin/sh\necho missing torch\n")
        (folder / "v" / "bin" / "python").chmod(0o755)
        (folder / "v" / "pyvenv.cfg").write_text("include-system-site-packages = true\n")
        (folder / ".venv").symlink_to(venv)
        active = {"VIRTUAL_ENV": f"{folder}/v"}
        assert "SLIPWAY_VENV" not in chosen(active).settings
        assert chosen(active, "modules=['torch']").settings["SLIPWAY_VENV"] == f"{folder}/v"

    def test_removed_active_environment_is_refused(self, folder):
        fake(folder / ".venv")
        with refused("no-environment", "VIRTUAL_ENV", folder / "gone", code=78):
            chosen({"VIRTUAL_ENV": str(folder / "gone")})

    @pytest.mark.parametrize("value", ["modules", "local"])
    def test_environment_of_site_without_folder_is_used(self, folder, value):
        assert chosen(None, *NO_CONTAINER, f"venv={value}").settings == {}

    def test_environment_of_site_is_used_if_it_exists(self, folder):
        fake(folder / ".venv")
        assert chosen() == ({"USE_CONTAINER": "0"}, "environment .venv (site example)")
        assert chosen(None, *NO_CONTAINER).settings == {}
        list_environments(folder, fake(folder / "envs" / "deep"))
        named = [*NO_CONTAINER, "venv=conda:deep"]
        assert chosen({"HOME": str(folder)}, *named) == ({}, f"environment {folder}/envs/deep (site example)")

    def test_neither_image_nor_environment_is_refused(self, folder):
        with refused("no-image", "slipway.sif", ".venv", "--venv", "--conda", "--image", code=78):
            chosen()
        with refused("no-environment", ".venv", "--venv", "--conda", "--image", code=78):
            chosen(None, *NO_CONTAINER, "venv=.venv")

    def test_one_machine_uses_image_only_with_its_runtime(self, folder, monkeypatch):
        (folder / "slipway.sif").touch()
        fake(folder / ".venv")
        monkeypatch.setenv("PATH", str(folder / "programs"))
        assert chosen(site="laptop") == ({"USE_CONTAINER": "0"}, "environment .venv (site laptop)")
        (folder / "programs").mkdir()
        (folder / "programs" / "apptainer").touch(mode=0o755)
        assert chosen(site="laptop") == ({"USE_CONTAINER": "1"}, "image slipway.sif")


class TestImports:
    def missing(self, venv, tmp_path, text, **options):
        script = tmp_path / "script.py"
        script.write_text(text)
        return check_imports(script, f"{venv}/bin/python", **options)

    def test_missing_modules_are_named_once_in_order_of_script(self, tmp_path, venv):
        text = "import zeta.x, extra\nfrom alpha.y import z\nimport os, zeta\nimport torch.nn\n"
        assert self.missing(venv, tmp_path, text) == ["zeta", "alpha"]

    def test_missing_torch_is_first(self, tmp_path, bare):
        assert self.missing(bare, tmp_path, "import zeta, torch\n") == ["torch", "zeta"]
        assert check_imports(None, f"{bare}/bin/python") == ["torch"]

    @pytest.mark.parametrize(
        "text",
        [
            "try:\n    import zeta\nexcept ImportError:\n    zeta = None\n",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import zeta\n",
            "def main():\n    import zeta\n",
            "from . import zeta\nfrom .zeta import x\n",
            "import __main__, __future__\n",
            "import sys\nsys.path.insert(0, 'lib')\nimport zeta\n",
        ],
    )
    def test_optional_and_relative_imports_are_left_out(self, tmp_path, venv, text):
        assert self.missing(venv, tmp_path, text) == []

    def test_modules_next_to_script_are_present(self, tmp_path, venv):
        (tmp_path / "package").mkdir()
        (tmp_path / "module.py").write_text("raise SystemExit(3)\n")
        assert self.missing(venv, tmp_path, "import package.x, module\n") == []

    def test_modules_next_to_target_of_link_are_present(self, tmp_path, venv):
        (tmp_path / "real").mkdir()
        (tmp_path / "real" / "module.py").touch()
        (tmp_path / "real" / "script.py").write_text("import module\n")
        (tmp_path / "script.py").symlink_to("real/script.py")
        assert check_imports(tmp_path / "script.py", f"{venv}/bin/python") == []

    def test_folder_replaces_folder_of_script(self, tmp_path, venv):
        (tmp_path / "package").mkdir()
        (tmp_path / "package" / "module.py").touch()
        script = tmp_path / "package" / "script.py"
        script.write_text("import module, package.module\n")
        assert check_imports(script, f"{venv}/bin/python", folder=tmp_path) == ["module"]

    def test_packages_of_shell_and_home_do_not_count(self, tmp_path, venv, monkeypatch):
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "zeta.py").touch()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
        assert self.missing(venv, tmp_path, "import zeta\n") == ["zeta"]

    @pytest.mark.parametrize(("text", "line"), [("import os\nx = = 1\n", 2), ("\n\nreturn 1\n", 3), ("a\0b\n", 1)])
    def test_invalid_python_gives_line(self, tmp_path, venv, text, line):
        with refused("bad-script", "script.py", f"line {line}", code=78):
            self.missing(venv, tmp_path, text)

    def test_python_without_an_answer_is_left_to_the_job(self, tmp_path, venv, monkeypatch):
        assert self.missing(tmp_path / "nowhere", tmp_path, "import zeta\n") == []
        assert check_imports(tmp_path / "gone.py", f"{venv}/bin/python") == []
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / "bin" / "python").chmod(0o755)
        monkeypatch.setattr("jobgen.run.runtime.LIMIT", 0.2)
        assert self.missing(tmp_path, tmp_path, "import zeta\n") == []

    def test_lines_of_environment_before_answer_are_skipped(self, tmp_path, bare):
        packages = next(bare.glob("lib/python*/site-packages"))
        (packages / "noise.pth").write_text("import sys; print('{')\n")
        try:
            assert self.missing(bare, tmp_path, "import zeta\n") == ["torch", "zeta"]
        finally:
            (packages / "noise.pth").unlink()

    @pytest.mark.parametrize(
        ("name", "file"), [("a.b", "a/b.py"), ("a", "a/__main__.py"), ("c", "c.py"), ("gone", None), ("a.gone", None)]
    )
    def test_file_of_module_is_below_current_folder(self, folder, name, file):
        (folder / "a").mkdir()
        for path in ("a/b.py", "a/__main__.py", "c.py"):
            (folder / path).touch()
        assert module_file(name) == (file and Path(file))


class TestProgram:
    @pytest.fixture
    def script(self, folder):
        (folder / "train.py").write_text("import extra, zeta\n")
        return Path("train.py")

    def check(self, capsys, environment, script, *settings, site="example", **options):
        """Return the slug and text of each error and warning."""
        job = job_of("ddp-local" if site == "laptop" else "ddp", site, list(settings))
        errors = list(check_program(job, environment, script, **options))
        said = messages(capsys.readouterr().err)
        return [*((error.slug, str(error)) for error in errors), *((warning.slug, warning.text) for warning in said)]

    @pytest.mark.parametrize("site", ["example", "laptop"])
    def test_missing_import_is_a_warning(self, capsys, script, venv, site):
        environment = {"USE_CONTAINER": "0", "SLIPWAY_VENV": str(venv)}
        [(slug, text)] = self.check(capsys, environment, script, site=site)
        assert slug == "missing-import"
        assert_names(text, "train.py", "zeta", venv)
        assert "extra" not in text

    def test_environment_without_torch_is_refused(self, capsys, script, bare):
        [(slug, text)] = self.check(capsys, {"USE_CONTAINER": "0", "SLIPWAY_VENV": str(bare)}, script)
        assert slug == "no-environment"
        assert_names(text, bare, "torch")

    def test_active_environment_without_torch_is_named_as_active(self, capsys, script, bare):
        environment = {"USE_CONTAINER": "0", "SLIPWAY_VENV": str(bare), "VIRTUAL_ENV": str(bare)}
        [(slug, text)] = self.check(capsys, environment, script)
        assert slug == "no-environment"
        assert_names(text, f"the active environment {bare}", "torch")

    def test_conda_environment_is_asked(self, capsys, folder, script, bare):
        list_environments(folder, bare)
        environment = {"USE_CONTAINER": "0", "SLIPWAY_VENV": "conda:bare", "HOME": str(folder)}
        assert [slug for slug, _ in self.check(capsys, environment, script)] == ["no-environment"]

    def test_script_with_syntax_error_is_refused(self, capsys, script, venv):
        script.write_text("import\n")
        environment = {"USE_CONTAINER": "0", "SLIPWAY_VENV": str(venv)}
        assert [slug for slug, _ in self.check(capsys, environment, script)] == ["bad-script"]

    @pytest.mark.parametrize(
        "environment", [{}, {"USE_CONTAINER": "0", "SLIPWAY_VENV": "modules"}, {"USE_CONTAINER": "0"}]
    )
    def test_image_modules_and_missing_environment_are_not_asked(self, capsys, script, environment):
        assert self.check(capsys, environment, script) == []

    def test_environment_completed_by_modules_is_not_asked(self, capsys, folder, script):
        (folder / "v" / "bin").mkdir(parents=True)
        (folder / "v" / "bin" / "python").write_text("#!/bin/sh\necho missing torch\n")
        (folder / "v" / "bin" / "python").chmod(0o755)
        (folder / "v" / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
        environment = {"USE_CONTAINER": "0", "SLIPWAY_VENV": "v"}
        assert [slug for slug, _ in self.check(capsys, environment, script)] == ["no-environment"]
        assert self.check(capsys, environment, script, "modules=['torch']") == []
        assert self.check(capsys, {**environment, "PYTHONPATH": "/x"}, script) == []

    def test_environment_in_memory_is_refused_and_names_image(self, capsys, folder, script):
        (folder / "link").symlink_to("/memory")
        environment = {"USE_CONTAINER": "0", "SLIPWAY_VENV": f"{folder}/link/no-such-environment"}
        [(slug, text)] = self.check(capsys, environment, script)
        assert slug == "not-shared"
        assert "slipway.sif" not in text
        (folder / "slipway.sif").touch()
        [(_, text)] = self.check(capsys, environment, script)
        assert_names(text, "no-such-environment", "slipway.sif", "--image")

    def test_script_image_and_module_folder_in_memory_are_refused(self, capsys, script):
        assert_names(self.check(capsys, {}, Path("/memory/x.py"))[0][1], "/memory/x.py")
        assert_names(self.check(capsys, {"SLIPWAY_IMAGE": "/memory/x.sif"}, script)[0][1], "/memory/x.sif")
        assert_names(self.check(capsys, {}, None, folder=Path("/memory/x"))[0][1], "/memory/x")

    def test_script_and_environment_on_one_disk_give_one_message(self, capsys, script):
        environment = {"USE_CONTAINER": "0", "SLIPWAY_VENV": "/memory/no-such-environment"}
        [(slug, text)] = self.check(capsys, environment, Path("/memory/x.py"))
        assert slug == "not-shared"
        assert_names(text, "/memory/x.py")

    def test_name_in_registry_has_no_place(self, capsys, script):
        environment = {"SLIPWAY_IMAGE": "docker://x", "USE_CONTAINER": "1"}
        assert self.check(capsys, environment, script, "container=podman") == []

    def test_one_machine_without_choice_is_not_asked(self, capsys, script):
        Path("link").symlink_to("/memory")
        assert self.check(capsys, {"SLIPWAY_IMAGE": "link/x.sif"}, script, site="laptop") == []
