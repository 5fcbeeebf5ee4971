"""docs/contract.md is the one list of variables, files and exit codes: the code has no other."""

import ast
import re
from pathlib import Path

import trainer
from trainer import errors
from trainer.runfolder import Status

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
SOURCES = sorted(Path(trainer.__file__).parent.rglob("*.py"))


def section(title):
    return CONTRACT.partition(f"## {title}\n")[2].partition("\n## ")[0]


def first_cells(text):
    return re.findall(r"^\| (.*?) \|", text, flags=re.MULTILINE)[1:]


def strings():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_the_variables_in_the_code_are_those_of_the_contract():
    named = {cell.strip("`") for cell in first_cells(section("Environment variables")) if cell.startswith("`")}
    used = {text for text in strings() if re.fullmatch(r"RANK|[A-Z]+(_[A-Z]+)+", text)}
    assert used == named


def test_the_settings_of_the_job_scripts_are_those_of_the_contract():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "jobscripts").glob("*.*") if path.is_file()]
    found = {name for text in texts for name in re.findall(r"\$\{([A-Z_]+):[-=]", text)}
    schedulers = {name for name in found if name.startswith(("SLURM_", "PBS_")) or name == "NCPUS"}
    ranks = {"OMP_NUM_THREADS", "MASTER_ADDR", "GLOO_SOCKET_IFNAME"}
    named = {cell.strip("`") for cell in first_cells(section("Settings of a job script"))}
    assert found - schedulers - ranks == named


def test_every_exit_code_of_the_code_is_explained():
    explained = set(first_cells(section("Exit codes")))
    for code in (0, 1, errors.EXIT_USAGE, errors.EXIT_STOPPED, errors.EXIT_CONFIG):
        assert str(code) in explained


def test_every_field_of_status_json_is_explained():
    for field in Status.__dataclass_fields__:
        assert f"`{field}`" in section("The run folder")


def test_no_link_in_the_documents_is_broken():
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target}"
