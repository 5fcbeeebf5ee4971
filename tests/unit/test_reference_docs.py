"""docs/reference lists all variables, settings, files, verdicts and exit codes of the code."""

import ast
import re
from pathlib import Path

import pytest

import slipway
import trainer
from slipway.base import contract
from slipway.run.status import Status

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
SOURCES = sorted(
    path
    for package in (slipway, trainer)
    for path in Path(package.__file__).parent.rglob("*.py")
    if path.name not in {"contract.py", "gpu.py"}  # these are of job scripts and images
)
JOBSCRIPTS = ROOT / "jobscripts"
SCRIPTS = sorted(path for path in JOBSCRIPTS.glob("*.*") if path.suffix in {".job", ".pbs", ".sh"})
LIBRARY = sorted((JOBSCRIPTS / "lib").glob("*.*"))
BUILDERS = {"venv_build.job", "image_build.job"}
READ, EXPORTED = "Read by the trainer", "Exported by job scripts to every rank"


def page(name):
    return (REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def section(name, title):
    """Return the text below a second-level heading of a page, with its subsections."""
    text = page(name).partition(f"\n## {title}\n")[2]
    assert text, title
    return text.partition("\n## ")[0]


def generated(name, table):
    """Return a table of a page that build/generate writes."""
    return page(name).partition(f"<!-- generated {table} -->\n")[2].partition("<!-- end -->")[0]


def first_cells(text):
    return re.findall(r"^\| (.*?) \|", text, flags=re.MULTILINE)


def names(text):
    """Return the variables in the first column of the tables in ``text``."""
    return {name for cell in first_cells(text) for name in re.findall(r"`([A-Z][A-Za-z_]+)`", cell)}


def strings():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def exported():
    """Return what the library's launch functions export, and what the rank wrapper executes."""
    for path in LIBRARY:
        if path.name in {"settings.bash", "build.bash"}:
            continue
        text = path.read_text(encoding="utf-8")
        for call in re.findall(r"^ *export_to_ranks ((?:.*\\\n)*.*)$", text, flags=re.MULTILINE):
            yield from re.findall(r"\b([A-Z][A-Za-z_]+)=", call)
        for words in re.findall(r"^ *export ([A-Z].*)$", text, flags=re.MULTILINE):
            yield from re.findall(r"(?:^|\s)([A-Z][A-Za-z_]+)(?==|\s|$)", words)


def test_page_lists_variables_read_by_trainer():
    used = {text for text in strings() if re.fullmatch(r"RANK|[A-Z]+(_[A-Z]+)+", text)} - {"SC_CLK_TCK"}
    assert used == names(section("environment-variables", READ))


def test_page_lists_variables_exported_by_job_scripts():
    assert {"RUN_DIR", "DATA", "GPUS_PER_NODE", "RANK", "SLIPWAY_EXPORTED"} <= set(exported())
    listed = section("environment-variables", EXPORTED)
    assert set(exported()) == names(listed)


def test_job_script_settings_match_contract_module():
    found = {path.name: set(re.findall(r"(?m)^: \"\$\{(\w+):=", path.read_text(encoding="utf-8"))) for path in SCRIPTS}
    everywhere = {"SLIPWAY_RUN_DIR", "SLIPWAY_LIB", "SLIPWAY_NOTIFY_SECONDS", "SLIPWAY_PROBE_SECONDS"}
    everywhere |= {"SLIPWAY_TRUSTED_FOLDER", "SLIPWAY_ADAPT"}
    assert set().union(*found.values()) | everywhere == contract.SETTINGS.keys()
    building = set(contract.BUILD_SETTINGS)
    for name, settings in found.items():
        assert bool(settings & building) == (name in BUILDERS), name
        assert ("SLIPWAY_ARGS" in settings) == name.endswith(".pbs"), name


def test_page_lists_every_setting():
    assert names(generated("settings", "settings")) == contract.SETTINGS.keys()


def test_page_lists_backends_of_each_job_script():
    rows = re.findall(r"(?m)^\| ((?:`[\w-]+`(?:, )?)+) \| (.*) \|$", section("settings", "Backends of the scripts"))
    table = {name: set(re.findall("`(.*?)`", cell)) for cells, cell in rows for name in re.findall("`(.*?)`", cells)}
    for path in SCRIPTS:
        if path.name not in BUILDERS:
            launched = re.findall(r"(?m)^launch_(\w+)\(\)", path.read_text(encoding="utf-8"))
            assert set(launched) == table[path.stem], path.name


def test_page_lists_every_exit_code():
    explained = {re.sub(r"^\[(.*)\]\(.*\)$", r"\1", cell) for cell in first_cells(page("exit-codes"))}
    assert {str(code) for code in (0, 1, contract.EXIT_USAGE, contract.EXIT_STOPPED, contract.EXIT_CONFIG)} <= explained


def test_page_lists_every_field_of_status_json():
    for field in Status.__dataclass_fields__:
        assert f"`{field}`" in section("run-folder", "status.json")


def test_page_lists_every_verdict():
    cells = first_cells(generated("verdicts", "verdicts"))
    assert [cell.strip("`") for cell in cells] == ["STATE", *contract.VERDICTS]


@pytest.mark.parametrize(
    "name", [name for name in vars(contract) if name.isupper() and isinstance(getattr(contract, name), str)]
)
def test_page_lists_every_file_of_run_folder(name):
    if name != "VERSION":
        assert re.search(rf"`(\w+/)*{re.escape(getattr(contract, name))}[`/]", page("run-folder")), name
