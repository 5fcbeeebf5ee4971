"""The page of ``trainer report`` in a real browser; skipped where there is no Chromium."""

import os
import re
import shutil
import subprocess

import pytest

from report_folders import make_confusion, make_run
from report_page import report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")


def open_page(tmp_path, *words):
    """Start Chromium without a window and return what it prints, its messages about the page among it."""
    command = [BROWSER, "--headless", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--enable-logging=stderr"]
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # Chromium refuses to run as root with one
    page = (tmp_path / "page.html").as_uri()
    return subprocess.run([*command, *words, page], check=True, capture_output=True, text=True, timeout=120)


def test_its_own_script_runs_and_that_of_a_run_does_not(tmp_path):
    run = make_run(tmp_path / "<img src=x onerror=console.log(12345)>")
    make_confusion(run, ["<script>document.title = 'taken'<\u2215script>", "b", "c"])
    report(tmp_path, run)
    found = open_page(tmp_path, "--dump-dom")
    assert re.search(r"<th[^>]*><button>state", found.stdout) or "<button>metric</button>" in found.stdout
    assert "<title>taken" not in found.stdout
    assert "CONSOLE" not in found.stderr  # neither 12345 nor anything that the policy refused


def test_it_prints(tmp_path):
    report(tmp_path, make_run(tmp_path / "run"))
    open_page(tmp_path, f"--print-to-pdf={tmp_path}/page.pdf")
    assert (tmp_path / "page.pdf").read_bytes()[:5] == b"%PDF-"
