"""Confusion matrix of a run, read from its figures folder."""

from __future__ import annotations

import base64
import csv
import io
import struct
import zlib
from typing import NamedTuple

from slipway.base.contract import FIGURES
from slipway.report.files.untrusted_folder import Folder

FILE = f"{FIGURES}/confusion.csv"
EXAMPLES = f"{FIGURES}/confused.png"
PNG = b"\x89PNG\r\n\x1a\n"
MOST_BYTES = 1 << 24
MAX_IMAGE_BYTES = 1 << 20
MAX_TABLE_CLASSES = 30
"""Maximum number of classes for which the matrix is shown as a table of numbers; larger ones are an image."""
MAX_CLASSES = 2000
MAX_COLUMN_NAME = 3
"""Characters that fit above a column of counts."""
PAIRS = 10
SHADES = (0.0, 0.02, 0.1, 0.3, 0.6)
"""Shares of a true class above which a cell gets the next darker shade."""


class Pair(NamedTuple):
    """Samples of one class that were predicted as another."""

    true: str
    predicted: str
    samples: int
    share: float
    """Fraction of the samples of the true class."""


class ClassRow(NamedTuple):
    """Recall and precision of one class."""

    name: str
    samples: int
    recall: float | None
    precision: float | None


class Confusion:
    """Counts of validation samples: rows are true classes, columns predicted classes."""

    def __init__(self, names: list[str], counts: list[list[int]]) -> None:
        """Store the square matrix ``counts`` of the classes ``names``."""
        self.names = names
        self.counts = counts
        self.totals = [sum(row) for row in counts]

    @property
    def samples(self) -> int:
        """Total number of samples."""
        return sum(self.totals)

    @property
    def right(self) -> int:
        """Number of correctly predicted samples."""
        return sum(row[index] for index, row in enumerate(self.counts))

    @property
    def in_cells(self) -> bool:
        """Whether the matrix is small enough to show as numbers."""
        return len(self.names) <= MAX_TABLE_CLASSES

    @property
    def numbered(self) -> bool:
        """Whether class names are too long for column heads, which then show class numbers."""
        return max(map(len, self.names)) > MAX_COLUMN_NAME

    def pairs(self) -> list[Pair]:
        """Return the most confused pairs of classes, sorted by number of samples, then by share."""
        found = [
            Pair(self.names[row], self.names[column], count, count / self.totals[row])
            for row, counts in enumerate(self.counts)
            for column, count in enumerate(counts)
            if count and row != column
        ]
        return sorted(found, key=lambda pair: (-pair.samples, -pair.share))[:PAIRS]

    def classes(self) -> list[ClassRow]:
        """Return all classes, the lowest recall first."""
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
        """Return each row: the class, and the count and shade (0 to 5, the darkest) of each cell."""
        return [
            (name, [(count, sum(count > edge * max(total, 1) for edge in SHADES)) for count in row])
            for name, row, total in zip(self.names, self.counts, self.totals, strict=True)
        ]

    def picture(self) -> str:
        """Return a PNG as a data: URL with one pixel per pair of classes; darker is a larger share of the row."""
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
    """Return the image of the most confused samples as a data: URL; "" if there is none."""
    found = folder.read(EXAMPLES, limit=MAX_IMAGE_BYTES)
    if found is None:
        return ""
    if found[: len(PNG)] != PNG or len(found) == MAX_IMAGE_BYTES:
        folder.warn(f"{EXAMPLES}: omitted, because it is not a PNG of less than {MAX_IMAGE_BYTES} bytes")
        return ""
    return _url(found)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def read_confusion(folder: Folder) -> Confusion | None:
    """Return the matrix of the last evaluation; None if it is missing, and with a warning if it is invalid."""
    text = folder.text(FILE, limit=MOST_BYTES)
    if text is None:
        return None
    try:
        return _parse(text)
    except (ValueError, csv.Error) as error:
        folder.warn(f"{FILE}: not a confusion matrix: {error}")
        return None


def _parse(text: str) -> Confusion:
    rows = list(csv.reader(io.StringIO(text)))
    if len(rows) < 3 or len(rows[0]) < 3:  # noqa: PLR2004 -- one class, names and totals
        raise ValueError("too few rows or columns")
    names = rows[0][1:-1]
    size = len(names)
    if size > MAX_CLASSES:
        raise ValueError(f"{size} classes are too many to show")
    body = rows[1 : size + 1]
    if [row[0] if row else "" for row in body] != names or any(len(row) != size + 2 for row in body):
        raise ValueError("rows and columns differ")
    counts = [[int(cell) for cell in row[1:-1]] for row in body]
    if any(not 0 <= count < 1 << 53 for row in counts for count in row):
        raise ValueError("a count is out of range")
    return Confusion(names, counts)
