"""HTML from templates. The templates escape all values."""

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
"""The first bytes of a report page."""
NOTHING = "\N{EN DASH}"
"""Placeholder for a missing value; page.js sorts it last."""


def render(name: str, /, **values: Any) -> Markup:
    """Return the template ``name`` with ``values`` filled in."""
    return Markup(_environment().get_template(name).render(values))  # noqa: S704 -- the template escapes them


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,  # for every template name
        loader=jinja2.FileSystemLoader(HERE),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=printable,
    )
    environment.filters |= {"number": number, "percent": percent, "duration": duration, "clock": clock}
    return environment


def printable(value: Any) -> Any:
    """Return ``value`` with unprintable characters replaced by U+FFFD.

    Examples: NUL, escape, a lone surrogate from a file name, a right-to-left override.
    """
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in value)


def number(value: float | None) -> str:
    """Format a number: whole numbers with thousands separators, others with four significant digits."""
    if value is None:
        return NOTHING
    if isinstance(value, int) or (math.isfinite(value) and value.is_integer() and abs(value) < 1e15):  # noqa: PLR2004
        return f"{int(value):,}"
    if 1000 <= abs(value) < 1e15:  # noqa: PLR2004 -- decimals would not be useful
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(value: float | None) -> str:
    """Format a fraction as a percentage."""
    return NOTHING if value is None or not math.isfinite(value) else f"{100 * value:.2f} %"


def duration(seconds: float | None) -> str:
    """Format a duration: 3 d 4 h, 1 h 5 min, 2 min 3 s, 4.2 s."""
    if seconds is None or not 0 <= seconds < 1e10:  # noqa: PLR2004 -- beyond that, a clock is wrong
        return NOTHING
    if seconds < 60:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    for size, name, part, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {name} {int(seconds % size // part)} {small}"
    raise AssertionError


def clock(when: float | None) -> str:
    """Format a time as date and time in UTC, because a page can cover machines in several time zones."""
    if when is None:
        return ""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(when)) + " UTC"
    except (OverflowError, ValueError, OSError):
        return ""


def page(title: str, body: Markup) -> str:
    """Return a whole page with ``body``, the style and script inline, and a policy that allows no others."""
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
        style=Markup(style),  # noqa: S704 -- from this package
        script=Markup(script),  # noqa: S704 -- from this package
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
