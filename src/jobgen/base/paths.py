"""Paths of jobgen's files (library, specs, sites, configurations): in a clone, or copies in the wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PACKAGED = PACKAGE / "data"
CHECKOUT = PACKAGE.parents[1]


def data_folder(*parts: str) -> Path:
    """Return the folder ``parts`` (``"jobscripts", "specs"``) of the wheel, or else of the installed checkout."""
    packaged = PACKAGED.joinpath(*parts)
    return packaged if packaged.exists() else CHECKOUT.joinpath(*parts)
