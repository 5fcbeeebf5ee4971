"""Documentation pages: files, links and pages of the site exist, README fits one screen, diagrams are up to date."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from readme import NAVIGATION

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")


def test_files_named_in_architecture_page_exist():
    named = re.findall(r"`((?:src|jobscripts|build|containers|configs)/[\w./-]+)`", PAGE)
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_navigation_lists_every_page_once():
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(NAVIGATION) == sorted(pages)


def test_readme_fits_one_screen():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 450
    assert len(text.splitlines()) <= 75
    assert max(map(len, text.splitlines())) <= 100


def test_diagrams_are_up_to_date(tmp_path):
    names = ["overview.svg", "job.svg", "time-limit.svg", "which-image.svg", "recovery.svg"]
    subprocess.run([sys.executable, ROOT / "build" / "pictures", "--output", tmp_path, *names], check=True)
    for name in names:
        assert (tmp_path / name).read_bytes() == (ROOT / "docs" / "figures" / name).read_bytes(), name


def test_framework_scripts_in_docs_match_tested_scripts():
    page = (ROOT / "docs" / "howto" / "frameworks.md").read_text(encoding="utf-8")
    scripts = ROOT / "tests" / "scripts" / "session"
    shown = re.findall(r"(?s)```python\n(.*?)```", page)
    assert shown == [
        (scripts / f"with_{name}.py").read_text(encoding="utf-8") for name in ("lightning", "fabric", "accelerate")
    ]


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
