"""The documentation site in Chromium: pages fit wide and narrow screens, and load nothing from other hosts."""

import functools
import http.server
import json
import re
import shutil
import subprocess
import threading

import pytest

from readme import NAVIGATION, ROOT

pytestmark = pytest.mark.prove
PROBE = """<!doctype html><title>probe</title><script>
async function measure(page, width) {{
    const frame = document.createElement("iframe");
    frame.width = width;
    frame.height = 900;
    frame.src = page;
    document.body.append(frame);
    await new Promise(done => frame.onload = done);
    const root = frame.contentDocument.scrollingElement;
    const found = [page, width, root.scrollWidth, root.innerText.length,
                   [...frame.contentDocument.images].filter(image => !image.naturalWidth).length];
    frame.remove();
    return found;
}}
onload = async () => {{
    const found = [];
    for (const page of {pages}) for (const width of [1280, 420]) found.push(await measure(page, width));
    document.body.innerText = JSON.stringify(found);
    document.title = "measured";
}};
</script><body></body>"""
"""Loads each page in frames of two widths; its text becomes [page, width, scroll width, characters, broken images]."""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Serve the site on the loopback interface; return its folder and address."""
    subprocess.run([ROOT / "build" / "docs"], check=True, capture_output=True)
    folder = tmp_path_factory.mktemp("site") / "site"
    shutil.copytree(ROOT / "site", folder)
    handler = functools.partial(QuietHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def browse(address, *options):
    """Return the document that Chromium has after its scripts have run."""
    command = [ROOT / "build" / "browser", "--virtual-time-budget=600000", "--dump-dom", *options, address]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout


def test_pages_fit_wide_and_narrow_screens_and_load_nothing_from_elsewhere(site, tmp_path):
    folder, address = site
    pages = [name.replace("README.md", "index.md").replace(".md", ".html") for name in NAVIGATION]
    (folder / "probe.html").write_text(PROBE.format(pages=json.dumps(pages)))
    shown = browse(f"{address}/probe.html", f"--log-net-log={tmp_path}/net.json")
    found = json.loads(re.search(r"<body[^>]*>(\[.*\])</body>", shown, flags=re.DOTALL)[1])
    assert len(found) == 2 * len(pages)
    assert [row for row in found if row[2] > row[1] or row[3] < 200 or row[4]] == []
    requested = set(re.findall(r'"url":"(https?://[^"/]+)', (tmp_path / "net.json").read_text()))
    assert requested == {address}
