"""A project with a hostile name, in which scripts run with stubs."""

import tempfile
from pathlib import Path

import pytest

from stubs import HOSTILE, ROOT, make_project


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Return a project whose path is as hostile as file systems allow; what was started in it ends with the test."""
    monkeypatch.chdir(ROOT)  # where `jobgen render` finds specs and sites by name
    project = make_project(tmp_path / HOSTILE, tmp_path / "spool")
    yield project
    for started in project.started:
        started.kill()


@pytest.fixture
def open_folder():
    """Return a folder into which everybody may look, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder
