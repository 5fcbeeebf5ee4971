"""What people look for at the top of a project, held against the project."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_citation_is_of_this_version():
    fields = dict(re.findall(r"(?m)^([\w-]+): (.*)$", text_of("CITATION.cff")))
    assert (fields["version"], fields["license"]) == (PROJECT["version"], PROJECT["license"])


def test_the_changelog_has_its_form():
    text = text_of("CHANGELOG.md")
    assert re.findall(r"(?m)^## (.*)$", text)[0] == "Unreleased"
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"(?m)^### (.*)$", text)) <= kinds


def test_commits_are_checked_by_what_checks_everything():
    assert "entry: build/check" in text_of(".pre-commit-config.yaml")
    assert "build/check" in text_of("Makefile")
