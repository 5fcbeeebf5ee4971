"""From templates to HTML: everything that is put into a template is escaped."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import time
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

HERE = Path(__file__).parent / "templates"
HEAD = "<!doctype html>"
"""How a page of ours begins."""
NOTHING = "\N{EN DASH}"
"""What stands where there is no value; page.js sorts it last."""


def render(name: str, /, **values: Any) -> Markup:
    """Return the template ``name`` with ``values`` filled in."""
    return Markup(_environment().get_template(name).render(values))  # noqa: S704 -- the template has escaped them


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,  # whatever a template is called
        loader=jinja2.FileSystemLoader(HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=printable,
    )
    environment.filters |= {"number": number, "percent": percent, "duration": duration, "clock": clock}
    return environment


def printable(value: Any) -> Any:
    """Return ``value`` as it may stand in a page: a letter that cannot be printed, or turns text around, is replaced.

    Such as NUL, an escape, half of a surrogate pair from the name of a file, or a right-to-left override.
    """
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in value)


def number(value: float | None) -> str:
    """Return ``value`` for people: whole numbers with thousands apart, others with four digits."""
    if value is None:
        return NOTHING
    if isinstance(value, int) or (math.isfinite(value) and value.is_integer() and abs(value) < 1e15):  # noqa: PLR2004
        return f"{int(value):,}"
    if 1000 <= abs(value) < 1e15:  # noqa: PLR2004 -- no more digits are of use
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(value: float | None) -> str:
    """Return a share for people."""
    return NOTHING if value is None or not math.isfinite(value) else f"{100 * value:.2f} %"


def duration(seconds: float | None) -> str:
    """Return a time for people: 3 d 4 h, 1 h 5 min, 2 min 3 s, 4.2 s."""
    if seconds is None or not 0 <= seconds < 1e10:  # noqa: PLR2004 -- or a clock is wrong
        return NOTHING
    if seconds < 60:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    for size, name, part, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {name} {int(seconds % size // part)} {small}"
    raise AssertionError


def clock(when: float | None) -> str:
    """Return a moment as date and time in UTC, as machines in several places write into one page."""
    if when is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(when)) + " UTC"
    except (OverflowError, ValueError, OSError):
        return ""


def page(title: str, body: Markup) -> str:
    """Return a whole page: what it shows, with our style and script inside, and a policy that allows no others."""
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return render(
        "page.html",
        title=title,
        body=body,
        policy=policy,
        style=Markup(style),  # noqa: S704 -- ours
        script=Markup(script),  # noqa: S704 -- ours
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
