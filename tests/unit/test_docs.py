"""Documentation pages: the files that they name exist, and the figures show every module."""

import re
from pathlib import Path

import pytest

import slipway

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_files_named_in_architecture_page_exist():
    named = re.findall(r"`((?:src|jobscripts|build|containers|configs)/[\w./-]+)`", PAGE)
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("package", ["jobgen", "slipway", "trainer"])
def test_import_figure_shows_every_module(package):
    figure = re.search(rf"<!-- generated imports_{package} -->\n(.*?)<!-- end -->", PAGE, flags=re.DOTALL)[1]
    shown = set(re.findall(r"\w+", figure))
    modules = {path.stem for path in (ROOT / "src" / package).glob("[!_]*.py")}
    modules |= {path.parent.name for path in (ROOT / "src" / package).glob("*/__init__.py")}
    assert modules - shown == set()


def test_framework_scripts_in_docs_match_tested_scripts():
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")
    scripts = ROOT / "tests" / "scripts" / "session"
    shown = re.findall(r"(?s)```python\n(.*?)```", page)
    assert shown == [
        (scripts / f"with_{name}.py").read_text(encoding="utf-8") for name in ("lightning", "fabric", "accelerate")
    ]


def test_reference_lists_only_public_api():
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert set(re.findall(r"(?m)^## (\w+)$", text)) == {*slipway.__all__, "SlipwayCallback"}
    for name in ("epochs", "batches", "log", "warm_up", "ckpt_path"):
        assert f"### {name}\n" in text
    for internal in ("capture", "facts", "on_train_batch_end"):
        assert internal not in text


@pytest.mark.parametrize(
    "page", [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda page: page.name
)
def test_links_between_pages_resolve(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)", text):
        other = (page.parent / target) if target else page
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"(?m)^#+ (.*)$", other.read_text(encoding="utf-8"))
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor[1:] in slugs, f"{target}{anchor}"
