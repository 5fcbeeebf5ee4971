"""The confusion matrix of a run: which classes are taken for which."""

from __future__ import annotations

import base64
import csv
import io
import struct
import zlib
from typing import NamedTuple

from slipway.base.contract import FIGURES
from slipway.report.untrusted_folder import Folder

FILE = f"{FIGURES}/confusion.csv"
EXAMPLES = f"{FIGURES}/confused.png"
PNG = b"\x89PNG\r\n\x1a\n"
MOST_BYTES = 1 << 24
MOST_BYTES_OF_EXAMPLES = 1 << 20
MOST_IN_CELLS = 30
"""Classes up to which the matrix is a table of numbers; beyond that it is a picture."""
MOST_IN_PICTURE = 2000
LONGEST_HEAD = 3
"""Letters that fit above a column of counts."""
PAIRS = 10
SHADES = (0.0, 0.02, 0.1, 0.3, 0.6)
"""Shares of a true class above which a cell is darker."""


class Pair(NamedTuple):
    """Samples of one class that were taken for another."""

    true: str
    predicted: str
    samples: int
    share: float
    """Of all samples of the true class."""


class ClassRow(NamedTuple):
    """How one class fared."""

    name: str
    samples: int
    recall: float | None
    precision: float | None


class Confusion:
    """Counts of validation samples: true classes down, predicted ones across."""

    def __init__(self, names: list[str], counts: list[list[int]]) -> None:
        """Keep a square matrix ``counts`` of the classes ``names``."""
        self.names = names
        self.counts = counts
        self.totals = [sum(row) for row in counts]

    @property
    def samples(self) -> int:
        """Samples in all."""
        return sum(self.totals)

    @property
    def right(self) -> int:
        """Samples whose class was found."""
        return sum(row[index] for index, row in enumerate(self.counts))

    @property
    def in_cells(self) -> bool:
        """Whether there is room for the numbers."""
        return len(self.names) <= MOST_IN_CELLS

    @property
    def numbered(self) -> bool:
        """Whether names are too long for the head of a column, which then shows the number of the class."""
        return max(map(len, self.names)) > LONGEST_HEAD

    def pairs(self) -> list[Pair]:
        """Return the pairs of classes that are confused most, the largest share of the true class first."""
        found = [
            Pair(self.names[row], self.names[column], count, count / self.totals[row])
            for row, counts in enumerate(self.counts)
            for column, count in enumerate(counts)
            if count and row != column
        ]
        return sorted(found, key=lambda pair: (-pair.samples, -pair.share))[:PAIRS]

    def classes(self) -> list[ClassRow]:
        """Return every class, the worst recall first."""
        claims = [sum(column) for column in zip(*self.counts, strict=True)]
        rows = [
            ClassRow(
                name,
                total,
                self.counts[index][index] / total if total else None,
                self.counts[index][index] / claims[index] if claims[index] else None,
            )
            for index, (name, total) in enumerate(zip(self.names, self.totals, strict=True))
        ]
        return sorted(rows, key=lambda row: 2.0 if row.recall is None else row.recall)

    def shades(self) -> list[tuple[str, list[tuple[int, int]]]]:
        """Return each row: the class, and for each cell its count and how dark it is, from 0 to 5."""
        return [
            (name, [(count, sum(count > edge * max(total, 1) for edge in SHADES)) for count in row])
            for name, row, total in zip(self.names, self.counts, self.totals, strict=True)
        ]

    def picture(self) -> str:
        """Return a PNG as a data: URL, a pixel for each pair of classes, the darker the larger its share of the row."""
        rows = []
        for row, total in zip(self.counts, self.totals, strict=True):
            shares = bytes(255 - round(235 * (count / max(total, 1)) ** 0.4) for count in row)
            rows.append(b"\0" + shares)
        size = len(self.names)
        parts = [
            PNG,
            _chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(b"".join(rows), 9)),
            _chunk(b"IEND", b""),
        ]
        return _url(b"".join(parts))


def _url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def read_examples(folder: Folder) -> str:
    """Return the picture of samples that are confused most, as a data: URL; "" if there is none."""
    found = folder.read(EXAMPLES, limit=MOST_BYTES_OF_EXAMPLES)
    if found is None:
        return ""
    if found[: len(PNG)] != PNG or len(found) == MOST_BYTES_OF_EXAMPLES:
        folder.warn(f"{EXAMPLES}: no picture of less than {MOST_BYTES_OF_EXAMPLES} bytes: it is left out")
        return ""
    return _url(found)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def read_confusion(folder: Folder) -> Confusion | None:
    """Return the matrix of the last evaluation; None if there is none, with a warning if it makes no sense."""
    text = folder.text(FILE, limit=MOST_BYTES)
    if text is None:
        return None
    try:
        return _parse(text)
    except (ValueError, csv.Error) as error:
        folder.warn(f"{FILE}: no confusion matrix: {error}")
        return None


def _parse(text: str) -> Confusion:
    rows = list(csv.reader(io.StringIO(text)))
    if len(rows) < 3 or len(rows[0]) < 3:  # noqa: PLR2004 -- one class, and the margins
        raise ValueError("too few rows or columns")
    names = rows[0][1:-1]
    size = len(names)
    if size > MOST_IN_PICTURE:
        raise ValueError(f"{size} classes are too many to show")
    body = rows[1 : size + 1]
    if [row[0] if row else "" for row in body] != names or any(len(row) != size + 2 for row in body):
        raise ValueError("rows and columns differ")
    counts = [[int(cell) for cell in row[1:-1]] for row in body]
    if any(not 0 <= count < 1 << 53 for row in counts for count in row):
        raise ValueError("a count is impossible")
    return Confusion(names, counts)
