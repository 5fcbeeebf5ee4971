"""Generated parts of the documentation: whole pages, and tables of pages that are written by hand."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pages.api import api_page
from pages.commands import jobgen_page, slipway_page, trainer_page
from pages.errors import errors_page
from pages.fields import spec_page, trainer_config_page
from pages.markdown import linked
from pages.tables import rooms_table, settings_table, verdict_table

PAGES: dict[str, Callable[[], str]] = {
    "reference/api.md": api_page,
    "reference/errors.md": errors_page,
    "reference/jobgen.md": jobgen_page,
    "reference/slipway.md": slipway_page,
    "reference/spec.md": spec_page,
    "reference/trainer.md": trainer_page,
    "reference/trainer-config.md": trainer_config_page,
}
"""Pages that are generated, by their path below docs/."""
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "reference/settings.md": {"settings": settings_table},
    "reference/verdicts.md": {"verdicts": verdict_table},
    "explanation/architecture.md": {
        f"rooms_{package}": partial(rooms_table, package) for package in ("jobgen", "slipway", "trainer")
    },
}
"""Tables between ``<!-- generated NAME -->`` and ``<!-- end -->`` of other pages."""


def generated_pages(docs: Path) -> dict[Path, str]:
    """Return the text of each page below ``docs`` that is generated or has generated tables.

    Raises:
        ValueError: if a page lacks the place of one of its tables.
    """
    pages = {docs / page: linked(page, text()) for page, text in PAGES.items()}
    for page, tables in TABLES.items():
        text = (docs / page).read_text(encoding="utf-8")
        for name, make in tables.items():
            place = re.compile(rf"(?<=<!-- generated {name} -->\n).*?(?=<!-- end -->)", flags=re.DOTALL)
            if not place.search(text):
                raise ValueError(f"docs/{page} has no table <!-- generated {name} -->")
            made = linked(page, make()) + "\n"
            text = place.sub(lambda _, made=made: made, text)
        pages[docs / page] = text
    return pages
