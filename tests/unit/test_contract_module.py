"""slipway.base.contract is the only place that defines names, settings and constants."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from slipway.base import contract

ROOT = Path(__file__).resolve().parents[2]
LIB = ROOT / "jobscripts" / "lib"


def imports_of(path):
    """Return the modules that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            # `from jobgen.base import queue` names a module, `from jobgen.base.errors import warn` a function
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


class TestLayout:
    def test_contract_module_imports_only_standard_library(self):
        names = {name.split(".")[0] for name in imports_of(ROOT / "src" / "slipway" / "base" / "contract.py")}
        assert names <= set(sys.stdlib_module_names)

    @pytest.mark.slow
    def test_generated_files_are_up_to_date(self):
        done = subprocess.run(
            [sys.executable, ROOT / "build" / "generate", "--check"], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")

    def test_version_is_same_in_package_project_and_script_library(self):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        library = re.search(r"(?m)^readonly LIBRARY_VERSION=(\S+)$", (LIB / "job.bash").read_text(encoding="utf-8"))
        assert contract.VERSION == project["version"] == library[1]

    @pytest.mark.parametrize(("name", "code"), [("EXIT_STOPPED", 75), ("EXIT_CONFIG", 78)])
    def test_exit_codes_match_script_library(self, name, code):
        found = re.search(rf"(?m)^readonly {name}=(\d+)", (LIB / "job.bash").read_text(encoding="utf-8"))
        assert getattr(contract, name) == code == int(found[1])

    def test_every_setting_has_prefix_comment_and_description(self):
        for row in contract.SETTINGS.values():
            assert row.name in {"USE_CONTAINER", "BACKEND"} or row.name.startswith("SLIPWAY_")
            assert row.comment
            assert row.about


VALUES = [
    *(
        "",
        "0",
        "1",
        "2",
        "01",
        "08",
        "-1",
        "+1",
        "1.0",
        "1e3",
        "abc",
        "yes",
        "no",
        "true",
        "cuda",
        "cpu",
        "auto",
        "gpu",
    ),
    *(
        "ddp",
        "horovod",
        "single",
        "ddp\n",
        "\nddp",
        "ddp ",
        "DDP",
        "9" * 6,
        "9" * 7,
        "a[$(id)]",
        "$(id)",
        "`id`",
        ";",
        "*",
    ),
    *(
        "a b",
        "a\tb",
        "a\nb",
        "a\x01b",
        "\x7f",
        "ü",
        "\udce4",
        "a.b-c_d",
        "../x",
        "/",
        "-n",
        "'",
        '"',
        "\\",
        "²",
        "\uff11",
    ),
]
"""One of each kind, plus what a pattern of one language might take for another: line ends, digits beyond ASCII."""


def test_setting_patterns_match_alike_in_bash_and_python():
    code = """set -euo pipefail
    script_name=x scheduler=local
    source "$1/local.bash"
    for name in "${SETTINGS[@]}"; do
        for value in "${@:2}"; do
            unset -v VALUE
            printf -v "$name" %s "$value"
            (check_setting "$name" 2>/dev/null) && echo 1 || echo 0
        done
    done"""
    words = ["bash", "-c", code, "-", str(LIB), *VALUES]
    answers = subprocess.run(words, capture_output=True, check=True, errors="surrogateescape").stdout.split()
    python = [str(int(contract.refusal(name, value) is None)) for name in contract.SETTINGS for value in VALUES]
    pairs = [(name, value) for name in contract.SETTINGS for value in VALUES]
    assert [pair for pair, one, other in zip(pairs, answers, python, strict=True) if one != other] == []


NAMES = {
    value
    for name, value in vars(contract).items()
    if name.isupper() and isinstance(value, str) and not name.startswith(("VERSION", "EXIT"))
}
OF_JOBS = {"answer", "pid", "server"}
"""Files that the library writes into logs/N for its own use."""


def test_run_folder_files_of_script_library_are_in_contract_module():
    for path in LIB.glob("*.*"):
        text = re.sub(r"(?m)^\s*#.*$", "", path.read_text(encoding="utf-8"))
        found = set(re.findall(r'(?:\$RUN_DIR|\$\{RUN_DIR:\?\}|\$SLIPWAY_RUN_DIR)"?/([A-Za-z][\w.]*)', text))
        found |= set(re.findall(r"\$log_dir/([A-Za-z][\w.]*)", text))
        found |= set(re.findall(r"\$folder/([a-z][\w.]*)", text)) if path.name == "scratch.bash" else set()
        unknown = (
            {name for name in found if name != "verdict." and not re.fullmatch(r"verdict\.\d*", name)} - NAMES - OF_JOBS
        )
        assert not unknown, f"{path.name}: {unknown}"


def test_states_read_by_script_library_match_verdicts():
    text = (LIB / "finish.bash").read_text(encoding="utf-8")
    cases = text.partition("\nfinish() {")[2].partition("\nesac")[0].partition("case $state in")[2].partition("esac")[0]
    states = set(re.findall(r"(?m)^        ([a-z-]+(?: \| [a-z-]+)*)\)", cases))
    found = {state for words in states for state in words.split(" | ")}
    assert found == set(contract.VERDICTS)
