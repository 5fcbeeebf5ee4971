"""The end of a run: its tables and figures, and the lines that a person reads last."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from slipway.base.errors import warn
from slipway.base.goodput import describe, read_goodput
from slipway.base.status import Status
from slipway.run.metrics import read_records
from slipway.run.run_folder import RunFolder
from trainer.data.sets import Dataset
from trainer.engine.evaluation import Evaluation
from trainer.engine.learner import Learner

CONFUSION_FIGURE, SCHEDULE = "confusion.png", "schedule.png"

log = logging.getLogger(__name__)


def write_results(
    folder: RunFolder,
    evaluation: Evaluation,
    dataset: Dataset,
    *,
    title: str,
    figures: bool,
    learner: Learner,
) -> None:
    """Write the tables of the last evaluation, of ``dataset``, and draw the figures, headed by ``title``, if asked."""
    write_tables(evaluation, dataset.classes, folder.figures)
    if figures:
        from trainer.results import figures as draw  # noqa: PLC0415 -- matplotlib is slow to import
        from trainer.results.schedule_figure import draw_schedule  # noqa: PLC0415

        try:
            draw.draw_curves(read_records(folder.metrics), folder.figures / "curves.png", title=title)
            draw.draw_confusion(evaluation, dataset.classes, folder.figures / CONFUSION_FIGURE)
            draw.draw_confused(evaluation, dataset, folder.figures / "confused.png")
            if (pipeline := learner.pipeline) and learner.timeline:
                passes, devices = learner.timeline.passes(), list(map(str, pipeline.devices))
                title = f"{title}; {pipeline.schedule}, {1 + max(unit.micro for unit, _, _ in passes)} micro-batches"
                draw_schedule(passes, devices, folder.figures / SCHEDULE, title=title)
        except Exception as error:  # noqa: BLE001 -- a picture must not fail a run that is trained and saved
            warn(log, "figure-not-drawn", "the figures are not drawn: %s", error)


def log_accuracy(evaluation: Evaluation) -> None:
    """Log how much of the validation set is recognised."""
    top5 = f", top-5 {100 * evaluation.top5:.2f} %" if len(evaluation.confusion) > 5 else ""  # noqa: PLR2004
    skipped = f", {evaluation.bad} that cannot be decoded left out" if evaluation.bad else ""
    log.info(
        "validation accuracy %.2f %% (%d of %d%s)%s",
        *(100 * evaluation.accuracy, evaluation.confusion.trace(), evaluation.samples, skipped, top5),
    )


def log_end(
    status: Status,
    folder: RunFolder,
    *,
    evaluation: Evaluation | None,
    samples: int,
    seconds: float,
    ranks: int,
    kept: bool,
) -> None:
    """Log what became of the run, how fast it was, and where it is.

    Args:
        status: of this attempt.
        folder: of the run.
        evaluation: the last one, if any.
        samples: trained on in this attempt, by all ranks.
        seconds: spent on them.
        ranks: the world's size.
        kept: whether the folder outlives the run, as that of a dry run does not.
    """
    if samples:
        rate = samples / max(seconds, 1e-9)
        log.info("trained on %d samples in %.1f s: %.0f samples/s, %.0f a rank", samples, seconds, rate, rate / ranks)
    if evaluation and status.state == "done":
        log_accuracy(evaluation)
    if evaluation and status.state == "done" and kept:
        drawn = f", drawn in {CONFUSION_FIGURE}" if (folder.figures / CONFUSION_FIGURE).exists() else ""
        log.info("confusion matrix: %s%s", folder.figures / CONFUSION, drawn)
    if status.state == "stopped":
        log.info("stopped (%s) at step %d, saved; --resume auto continues", status.reason, status.step)
    if kept:
        log.info("time: %s", describe(read_goodput(folder.goodput)))
        log.info("run folder: %s", folder.path)


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
