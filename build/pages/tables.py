"""Generated tables of pages that are written by hand: settings, verdicts, and the rooms of each package."""

import ast
import graphlib
import re
from pathlib import Path

from pages.markdown import table
from slipway.base import contract

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("ddp.job", "ddp.pbs", "dask.sh", "venv_build.job", "image_build.job")
"""Job scripts that have all settings; the default of a setting is that of the first one that has it."""


def settings_table() -> str:
    """Return the table of the settings of job scripts."""
    defaults: dict[str, str] = {}
    for script in reversed(SCRIPTS):
        text = (ROOT / "jobscripts" / script).read_text(encoding="utf-8")
        defaults |= dict(re.findall(r'(?m)^: "\$\{(\w+):=([^}]*)\}"', text))
    rows = []
    for row in contract.SETTINGS.values():
        empty = ", or empty" if row.optional else ""
        default = f"`{defaults[row.name]}`" if defaults.get(row.name) else ""
        rows.append((f"`{row.name}`", f"{row.kind.expected}{empty}", default, row.about))
    return table(("setting", "value", "default", "effect"), rows)


def verdict_table() -> str:
    """Return the table of verdicts."""
    return table(("STATE", "meaning"), [(f"`{name}`", text) for name, text in contract.VERDICTS.items()])


def rooms_table(package: str) -> str:
    """Return a table of a package's folders and files, each above all that it imports.

    Raises:
        CycleError: if they import each other.
    """
    folder, imports = ROOT / "src" / package, imports_of(package)
    order = [*graphlib.TopologicalSorter(imports).static_order()][::-1]
    names = {room: f"`{room}/`" if (folder / room).is_dir() else f"`{room}.py`" for room in order}
    rows = []
    for room in [room for room in order if room != "__main__"]:
        path = folder / room / "__init__.py" if (folder / room).is_dir() else folder / f"{room}.py"
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))).splitlines()[0].replace("``", "`")
        imported = [names[other] for other in order if other in imports[room]]
        rows.append((names[room], text, ", ".join(imported)))
    return table(("room", "what it holds", "imports"), rows)


def imports_of(package: str) -> dict[str, list[str]]:
    """Return, for each part (module or subpackage) of a package, the parts that it imports, also inside functions."""
    folder = ROOT / "src" / package
    parts = {path.stem for path in folder.iterdir() if path.suffix in {".py", ""} and not path.name.startswith("__p")}
    found: dict[str, set[str]] = {part: set() for part in sorted(parts - {"__init__"})}
    for path in folder.rglob("*.py"):
        part = path.relative_to(folder).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and part in found:
                names = {f"{node.module}.{alias.name}".split(".")[1] for alias in node.names if node.module}
                found[part] |= names & (parts - {part}) if node.module.split(".")[0] == package else set()
    return {part: sorted(others) for part, others in found.items()}
