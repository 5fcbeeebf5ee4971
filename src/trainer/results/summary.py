"""Results at the end of a run: tables, figures and the last log lines."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from slipway.base.errors import warn
from slipway.base.goodput import describe, read_goodput
from slipway.run.metrics import read_records
from slipway.run.run_folder import RunFolder
from slipway.run.status import Status
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
    """Write the tables of the last evaluation, on ``dataset``; if ``figures``, draw the figures with ``title``."""
    write_tables(evaluation, dataset.classes, folder.figures)
    if figures:
        from trainer.results import figures as draw  # noqa: PLC0415 -- matplotlib is slow to import
        from trainer.results.schedule_figure import draw_schedule  # noqa: PLC0415

        try:
            draw.draw_curves(read_records(folder.metrics), folder.figures / "curves.png", title=title)
            draw.draw_confusion(evaluation, dataset.classes, folder.figures / CONFUSION_FIGURE)
            draw.draw_confused_images(evaluation, dataset, folder.figures / "confused.png")
            if (pipeline := learner.pipeline) and learner.timeline:
                passes, devices = learner.timeline.passes(), list(map(str, pipeline.devices))
                title = f"{title}; {pipeline.schedule}, {1 + max(unit.micro for unit, _, _ in passes)} micro-batches"
                draw_schedule(passes, devices, folder.figures / SCHEDULE, title=title)
        except Exception as error:  # noqa: BLE001 -- a figure must not fail a run that is trained and saved
            warn(log, "figure-not-drawn", "the figures could not be drawn: %s", error)


def log_accuracy(evaluation: Evaluation) -> None:
    """Log the accuracy on the validation set."""
    top5 = f", top-5 {100 * evaluation.top5:.2f} %" if len(evaluation.confusion) > 5 else ""  # noqa: PLR2004
    skipped = f", without {evaluation.bad} that cannot be decoded" if evaluation.bad else ""
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
    """Log the run's final state, its speed and its folder.

    Args:
        status: this attempt's status.
        folder: the run folder.
        evaluation: the last evaluation, if any.
        samples: the number of samples that all ranks trained on in this attempt.
        seconds: the training time for these samples.
        ranks: the world size.
        kept: whether the folder remains after the run; false for a dry run.
    """
    if samples:
        rate = samples / max(seconds, 1e-9)
        log.info("trained on %d samples in %.1f s: %.0f samples/s, %.0f per rank", samples, seconds, rate, rate / ranks)
    if evaluation and status.state == "done":
        log_accuracy(evaluation)
        if kept:
            drawn = f", figure: {CONFUSION_FIGURE}" if (folder.figures / CONFUSION_FIGURE).exists() else ""
            log.info("confusion matrix: %s%s", folder.figures / CONFUSION, drawn)
    if status.state == "stopped":
        log.info("stopped (%s) and saved at step %d; --resume auto continues", status.reason, status.step)
    if kept:
        log.info("time: %s", describe(read_goodput(folder.goodput)))
        log.info("run folder: %s", folder.path)


CONFUSION = "confusion.csv"


def write_tables(evaluation: Evaluation, classes: Sequence[str], folder: Path) -> None:
    """Write confusion.csv and classes.csv into ``folder``."""
    write_confusion(evaluation, classes, folder / CONFUSION)
    write_classes(evaluation, classes, folder / "classes.csv")


def write_confusion(evaluation: Evaluation, classes: Sequence[str], path: Path) -> None:
    """Write the confusion counts: rows are true classes, columns predicted classes, with totals for both."""
    counts = evaluation.confusion
    rows = [[name, *row, sum(row)] for name, row in zip(classes, counts.tolist(), strict=True)]
    totals = ["total", *counts.sum(0).tolist(), evaluation.samples]
    _write(path, ["true \\ predicted", *classes, "total"], [*rows, totals])


def write_classes(evaluation: Evaluation, classes: Sequence[str], path: Path) -> None:
    """Write each class's number of samples, recall and precision."""
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
