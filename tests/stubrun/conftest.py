"""Fixtures: a project with a hostile name, in which scripts run with stubs."""

import tempfile
from pathlib import Path

import pytest

from stubs import HOSTILE, ROOT, make_project


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a project whose path is as hostile as file systems allow; its processes end with the test."""
    monkeypatch.chdir(ROOT)  # where `jobgen render` finds specs and sites by name
    project = make_project(tmp_path / HOSTILE, tmp_path / "spool")
    yield project
    for started in project.started:
        started.kill()


@pytest.fixture
def open_folder():
    """Return a folder that all users may enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder
