"""Parser of ``trainer report`` pages for tests."""

import re
from html.parser import HTMLParser
from pathlib import Path

from slipway.report.cli import main

VOID = {"meta", "link", "img", "br", "path", "circle", "rect"}
ALLOWED = {"href": re.compile(r"#[\w-]+|data:,"), "src": re.compile(r"data:image/png;base64,[\w+/=]+")}


class Page(HTMLParser):
    """A parsed page. Asserts that elements nest, ids are unique, and links stay within the page."""

    def __init__(self, path: Path):
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.stack, self.ids, self.tags, self.words, self.hashes = [], [], [], [], {}
        self.policy = ""
        self.feed(self.source)
        self.close()
        assert self.stack == []
        assert len(set(self.ids)) == len(self.ids)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append((tag, found))
        assert not any(name.startswith("on") or name == "style" for name in found), found
        for name, pattern in ALLOWED.items():
            assert name not in found or pattern.fullmatch(found[name]), found
        if "id" in found:
            self.ids.append(found["id"])
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] in {"style", "script"}:
            self.hashes.setdefault(self.stack[-1], []).append(data)
        else:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def figures(self):
        return re.findall(r"<figcaption><b>(.*?)</b>", self.source)


def report(tmp_path, *paths, code=0) -> Page | None:
    """Create the report of ``paths`` in ``tmp_path`` and return the parsed page; None if ``code`` is not 0."""
    output = tmp_path / "page.html"
    assert main([*map(str, paths), "--output", str(output)]) == code
    return Page(output) if code == 0 else None
