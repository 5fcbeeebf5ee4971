"""Where jobgen's own files are: library, specs, sites and configurations of a clone, or their copies in the wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]
PACKAGED = PACKAGE / "data"
CHECKOUT = PACKAGE.parents[1]


def data_folder(*parts: str) -> Path:
    """Return the folder ``parts`` (``"jobscripts", "specs"``) of the wheel, or of the checkout that is installed."""
    packaged = PACKAGED.joinpath(*parts)
    return packaged if packaged.exists() else CHECKOUT.joinpath(*parts)
