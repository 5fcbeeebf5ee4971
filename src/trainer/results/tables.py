"""The numbers of an evaluation as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from trainer.evaluation import Evaluation

CONFUSION = "confusion.csv"


def write_tables(evaluation: Evaluation, classes: Sequence[str], folder: Path) -> None:
    """Write confusion.csv and classes.csv into ``folder``."""
    write_confusion(evaluation, classes, folder / CONFUSION)
    write_classes(evaluation, classes, folder / "classes.csv")


def write_confusion(evaluation: Evaluation, classes: Sequence[str], path: Path) -> None:
    """Write the cross-tabulated counts: true classes down, predicted ones across, totals on both margins."""
    counts = evaluation.confusion
    rows = [[name, *row, sum(row)] for name, row in zip(classes, counts.tolist(), strict=True)]
    totals = ["total", *counts.sum(0).tolist(), evaluation.samples]
    _write(path, ["true \\ predicted", *classes, "total"], [*rows, totals])


def write_classes(evaluation: Evaluation, classes: Sequence[str], path: Path) -> None:
    """Write for each class its samples, recall (share of them found) and precision (share of its claims right)."""
    counts = evaluation.confusion.double()
    right = counts.diagonal()
    columns = (evaluation.confusion.sum(1), right / counts.sum(1), right / counts.sum(0))
    rows = zip(classes, *(column.tolist() for column in columns), strict=True)
    _write(path, ["class", "samples", "recall", "precision"], rows)


def _write(path: Path, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(header)
        table.writerows(rows)
