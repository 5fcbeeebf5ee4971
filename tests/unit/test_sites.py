"""docs/sites.md is the list of a site's fields, with their defaults, and nothing else is."""

import re
from pathlib import Path

import msgspec

from jobgen.load import load
from jobgen.model import Site

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sites.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## The fields\n")[2].partition("\n## ")[0]
ROWS = {
    cells[0].strip("`"): cells[1:] for cells in re.findall(r"(?m)^\| (`\w+`) \| (.*?) \| (.*?) \| (.*?) \|$", TABLE)
}
"""Default, meaning, and how to find it, of each field."""
FIELDS = {field.name: field for field in msgspec.structs.fields(Site)}


def test_every_field_has_its_row():
    missing, unknown = FIELDS.keys() - ROWS.keys(), ROWS.keys() - FIELDS.keys()
    assert not missing, f"docs/sites.md says nothing of {', '.join(sorted(missing))}"
    assert not unknown, f"docs/sites.md describes {', '.join(sorted(unknown))}, which jobgen.model.Site does not have"


def test_the_rows_stand_in_the_order_of_the_fields():
    assert list(ROWS) == list(FIELDS)


def test_a_default_is_the_codes():
    for name, field in FIELDS.items():
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        expected = "required" if default is None else "none" if default in ("", (), {}) else str(default)
        assert ROWS[name][0].strip("`") == expected, name


def test_every_choice_is_explained():
    for name, field in FIELDS.items():
        for choice in getattr(field.type, "__args__", ()):
            if isinstance(choice, str) and choice:
                assert f"`{choice}`" in " ".join(ROWS[name]), f"docs/sites.md does not explain {name} = {choice!r}"


def test_every_site_is_valid():
    sites = sorted((ROOT / "jobscripts" / "sites").glob("*.toml"))
    assert len(sites) > 3
    for path in sites:
        load(str(path), [], Site)
