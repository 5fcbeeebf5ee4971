"""jobgen: what its options mean, what it refuses, what it may import."""

import ast
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from jobgen.cli import main
from jobgen.errors import JobgenError
from jobgen.words import Expansion, array, default, quote, variable

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "jobgen"
MODULES = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
LAYERS = [
    "cli",
    "submit",
    "follow",
    "runs",
    "files",
    "load",
    "render",
    "launch",
    "placement",
    "containers",
    "schedulers",
    "model",
    "skeletons",
    "words",
]
HOSTILE = ["a b", "a'b", 'a"b', "a:b,c", "$(touch x)", "`touch x`", "a;b", "ü", "-n", "", "*", "\\", "}", "#"]


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def rendered(capsys, *settings, spec="ddp", site="example"):
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["render", spec, "--site", site, *words]) == 0
    return capsys.readouterr().out


def refused(capsys, *settings, spec="ddp", site="example"):
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["render", spec, "--site", site, *words]) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def shell(script, *words):
    return subprocess.run(["bash", "-c", script, *words], check=True, capture_output=True, text=True).stdout


class TestWords:
    @pytest.mark.parametrize("text", HOSTILE)
    def test_a_literal_reaches_the_command_unchanged(self, text):
        assert shell(f"printf %s {quote(text)}") == text

    @pytest.mark.parametrize("text", [text for text in HOSTILE if "'" not in text])
    def test_a_default_is_what_the_variable_holds(self, text):
        assert shell(f': "${{NAME:={default(text)}}}"; printf %s "$NAME"') == text

    def test_a_default_with_a_single_quote_is_refused(self):
        with pytest.raises(JobgenError, match="holds a single quote"):
            default("a'b")

    @pytest.mark.parametrize("text", ["a\nb", "a\0b", "a\rb"])
    def test_what_could_begin_a_new_line_is_refused(self, text):
        with pytest.raises(JobgenError, match="holds a line break or NUL"):
            quote(text)

    def test_variables_stay_variables(self):
        assert quote(variable("PWD", option="--pwd")) == '--pwd="$PWD"'
        assert shell(f'list=("a b" c); printf "<%s>" {quote(array("list"))}') == "<a b><c>"
        assert quote(Expansion('"$a"')) == '"$a"'


def test_what_is_no_file_keeps_its_mode(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert main(["render", "ddp", "--site", "example", "--output", str(pipe)]) == 0
        assert reader.stdout.read().startswith(b"#!/usr/bin/env bash")
    assert stat.S_IMODE(pipe.stat().st_mode) == 0o600


class TestSettings:
    def test_an_option_has_the_schedulers_own_name(self, capsys):
        text = rendered(capsys, "options.qos=high", "options.exclusive=true", "options.nodes=7")
        assert "#SBATCH --qos=high " in text
        assert "#SBATCH --exclusive " in text
        assert re.findall(r"--nodes=\d+", text) == ["--nodes=7"]

    def test_one_can_be_dropped(self, capsys):
        assert (
            "--account" not in rendered(capsys, "options.account=false").partition("set -euo")[0].partition("\n#SB")[2]
        )

    def test_an_option_with_blanks_is_one_word(self, capsys):
        assert "#SBATCH '--comment=two words' " in rendered(capsys, "options.comment=two words")

    def test_any_other_directive_is_passed_through(self, capsys):
        assert "#SBATCH --mail-type=END,FAIL " in rendered(capsys, site="modules-proxies")

    def test_the_warning_comes_before_the_save_and_the_schedulers_inexactness(self, capsys):
        assert "--signal=B:USR1@360 " in rendered(capsys, "save_seconds=300")

    def test_the_same_input_gives_the_same_bytes(self, capsys):
        assert rendered(capsys) == rendered(capsys)


class TestRefusals:
    def test_an_unknown_key_is_answered_with_the_nearest(self, capsys):
        assert "unknown key 'node'. Did you mean 'nodes'?" in refused(capsys, "node=3")

    def test_an_unknown_site_with_those_there_are(self, capsys):
        assert "Did you mean 'example'? There are: amd, cray, example, " in refused(capsys, site="exampel")

    def test_a_value_of_the_wrong_kind(self, capsys):
        assert "Expected `int`, got `str` - at `$.nodes`" in refused(capsys, "nodes=two")

    def test_a_missing_file(self, capsys):
        assert "cannot read nowhere.toml: No such file" in refused(capsys, spec="nowhere.toml")

    def test_a_line_break_in_an_option(self, capsys):
        assert "holds a line break" in refused(capsys, 'options.comment="a\\nrm"')

    def test_many_nodes_without_a_scheduler(self, capsys):
        assert "site laptop is one machine" in refused(capsys, site="laptop")

    @pytest.mark.parametrize(
        ("spec", "site", "setting", "way_out"),
        [
            ("horovod", "cray", "nodes=2", "render horovod-gloo, which needs none"),
            ("ddp-mpirun", "cray", "nodes=2", "render ddp, which needs none"),
            ("horovod", "pbs", "launcher=ssh", "render horovod-gloo, or set launcher = 'mpirun'"),
            ("horovod-srun", "pbs", "nodes=2", "let it be started by mpirun or ssh"),
            ("ddp", "example", "resume=chain", "Slurm lets a job requeue itself"),
            ("horovod-gloo", "laptop", "nodes=1", "is one machine"),
        ],
    )
    def test_what_cannot_be_run_somewhere_is_told_with_the_way_out(self, capsys, spec, site, setting, way_out):
        assert way_out in refused(capsys, setting, spec=spec, site=site)

    @pytest.mark.parametrize("setting", ["nodes=0", "minutes=0", "ranks_per_node=-1"])
    def test_counts_below_one(self, capsys, setting):
        assert "must be at least 1" in refused(capsys, setting)


class TestArchitecture:
    def test_imports_go_one_way(self):
        for module, text in MODULES.items():
            layer = module.split("/")[0].removesuffix(".py")
            if layer in LAYERS:
                used = set(re.findall(r"^\s*from jobgen\.(\w+)", text, flags=re.MULTILINE)) & set(LAYERS)
                assert {name for name in used if LAYERS.index(name) < LAYERS.index(layer)} == set(), module

    def test_only_schedulers_name_their_variables(self):
        for path in SOURCE.rglob("*.*"):
            if path.suffix in {".py", ".bash"} and ("SLURM_" in path.read_text() or "PBS_" in path.read_text()):
                assert {"schedulers", "slurm", "pbs"} & set(path.parts), path

    def test_nothing_but_the_standard_library_and_a_validator_is_imported(self):
        allowed = sys.stdlib_module_names | {"jobgen", "msgspec", "tomli", "__future__"}
        for module, text in MODULES.items():
            for node in ast.walk(ast.parse(text, feature_version=(3, 9))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) else []
                assert {name.split(".")[0] for name in names} <= allowed, module

    def test_help_loads_next_to_nothing(self):
        code = "import sys, jobgen.cli; print({'torch', 'msgspec', 'tomllib', 'subprocess'} & set(sys.modules))"
        assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


class TestSubmit:
    def test_dry_run_shows_the_script_and_the_command(self, capsys, monkeypatch, tmp_path):
        (tmp_path / "image.sif").touch()
        monkeypatch.setenv("IMAGE", str(tmp_path / "image.sif"))
        assert main(["submit", "ddp", "--site", "example", "--dry-run", "--", "--epochs", "2"]) == 0
        out, err = capsys.readouterr()
        assert out.startswith("#!/usr/bin/env bash")
        assert err == "jobgen: would submit this with: sbatch --parsable SCRIPT --epochs 2\n"

    def test_pbs_gets_the_arguments_in_a_variable(self, capsys, monkeypatch, tmp_path):
        (tmp_path / "image.sif").touch()
        monkeypatch.setenv("IMAGE", str(tmp_path / "image.sif"))
        assert main(["submit", "ddp", "--site", "pbs", "--dry-run", "--", "--epochs", "2"]) == 0
        assert capsys.readouterr().err == "jobgen: would submit this with: qsub -V -v 'TRAIN_ARGS=--epochs 2' SCRIPT\n"

    @pytest.mark.parametrize(
        ("name", "others"),
        [("IMAGE", {}), ("VENV", {"USE_CONTAINER": "0"}), ("DATA", {"USE_CONTAINER": "0", "VENV": ""})],
    )
    def test_what_is_missing_is_named_before_it_waits_in_a_queue(self, capsys, monkeypatch, tmp_path, name, others):
        if "VENV" in others:
            (tmp_path / "bin").mkdir()
            (tmp_path / "bin" / "python").touch()
        for key, value in {**others, name: str(tmp_path / "missing")}.items():
            monkeypatch.setenv(key, value or str(tmp_path))
        assert main(["submit", "ddp", "--site", "example"]) == 78
        assert re.match(rf"jobgen: {name}: .*missing.* is missing or cannot be read from here", capsys.readouterr().err)
