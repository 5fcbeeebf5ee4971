"""Figures of a run: learning curves, confusion matrix and confused images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slipway.run.metrics import Record
from trainer.data.sets import Dataset
from trainer.engine.evaluation import Evaluation

PAIRS, EXAMPLES = 8, 8
"""Pairs of classes in confused.png, and images per pair."""


def draw_curves(records: Sequence[Record], path: Path, *, title: str) -> None:
    """Draw the loss and the validation error over epochs, with the time above, the learning rate and the speed."""
    train = [record for record in records if record["kind"] == "train"]
    validation = [record for record in records if record["kind"] == "validation"]
    figure = Figure(figsize=(10, 7), layout="constrained")
    figure.suptitle(title)
    (loss, error), (rate, speed) = figure.subplots(2, 2)
    _plot(loss, train, "epoch", "loss", label="train", color="tab:blue", alpha=0.7)
    _plot(loss, validation, "epoch", "loss", label="validation", color="tab:orange", marker=".")
    loss.set(yscale="log", ylabel="cross-entropy (nats)", xlabel="epoch")
    loss.legend()
    _show_error(error, validation)
    for axis in (loss, error):
        _show_time(axis, sorted(train + validation, key=lambda record: record["epoch"]))
    _plot(rate, train, "step", "lr", color="tab:green")
    rate.set(ylabel="learning rate", xlabel="optimizer step")
    _plot(speed, train, "step", "samples_per_second", color="tab:gray")
    speed.set(ylabel="samples/s, all ranks", xlabel="optimizer step", ylim=(0, None))
    for axis in (loss, error, rate, speed):
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _plot(axis: Axes, records: Sequence[Record], x: str, y: str, **style: Any) -> None:
    axis.plot([record[x] for record in records], [record[y] for record in records], **style)


def _show_error(axis: Axes, validation: Sequence[Record]) -> None:
    """Draw 100 % minus the accuracy, on a log scale from the smallest error above 0, which shows all epochs."""
    errors = [100 * (1 - record["accuracy"]) for record in validation]
    axis.plot([record["epoch"] for record in validation], errors, color="tab:orange", marker=".")
    axis.set(ylabel="validation error (%)", xlabel="epoch")
    if not validation:
        return
    smallest = min((error for error in errors if error > 0), default=1.0)
    axis.set_yscale("symlog", linthresh=smallest)
    bottom, top = 0 if min(errors) == 0 else 0.9 * smallest, 1.1 * max(*errors, smallest)
    ticks = [digit * 10.0**power for power in range(-4, 3) for digit in (1, 2, 5)]
    axis.set_yticks([*[0] * (bottom == 0), *(tick for tick in ticks if 0.9 * smallest <= tick <= top)])
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_ylim(bottom, top)
    best = min(range(len(errors)), key=errors.__getitem__)
    axis.axhline(errors[best], color="tab:gray", linewidth=0.8, linestyle=":")
    axis.set_title(
        f"accuracy: best {100 - errors[best]:.2f} % at epoch {validation[best]['epoch']:g}, "
        f"last {100 - errors[-1]:.2f} %",
        fontsize=10,
    )


def _show_time(axis: Axes, records: Sequence[Record]) -> None:
    """Label the upper edge with the training time of each epoch."""
    epochs = np.array([record["epoch"] for record in records])
    times = np.array([record["elapsed"] for record in records])
    if len(records) < 2 or np.ptp(times) == 0:  # noqa: PLR2004
        return
    shown = [tick for tick in axis.get_xticks() if epochs.min() <= tick <= epochs.max()]
    above = axis.twiny()
    above.set_xlim(axis.get_xlim())
    above.set_xticks(shown, [f"{time:.3g}" for time in np.interp(shown, epochs, times)])
    above.set_xlabel("training time (s)")


def draw_confusion(evaluation: Evaluation, classes: Sequence[str], path: Path) -> None:
    """Draw the confusion matrix: each row shows the predictions for one true class, in percent of its samples."""
    classes = [name.replace("$", r"\$") for name in classes]  # otherwise matplotlib parses it as math
    counts = evaluation.confusion.numpy()
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    edge = min(20.0, max(5.0, 0.45 * len(classes) + 2))
    figure = Figure(figsize=(edge + 1, edge), layout="constrained")
    axis = figure.subplots()
    # A good model's predictions are almost all on the diagonal; a power scale keeps single errors visible.
    image = axis.imshow(shares, cmap="Blues", norm=mpl.colors.PowerNorm(0.4, 0, 100))
    figure.colorbar(image, label="% of the true class", ticks=[0, 1, 5, 20, 50, 100])
    axis.set(xlabel="predicted class", ylabel="true class")
    axis.set_title(f"{evaluation.samples} validation samples, {100 * evaluation.accuracy:.2f} % correct")
    if len(classes) <= 30:  # noqa: PLR2004 -- with more classes, names and numbers would overlap
        axis.set_xticks(range(len(classes)), classes, rotation=90 if max(map(len, classes)) > 2 else 0)  # noqa: PLR2004
        axis.set_yticks(range(len(classes)), classes)
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 40 else "black"  # noqa: PLR2004
                axis.text(column, row, str(count), ha="center", va="center", color=colour, fontsize="small")
    figure.savefig(path, dpi=120)


def draw_confused_images(evaluation: Evaluation, dataset: Dataset, path: Path) -> None:
    """Draw images of the most confused pairs of classes, one row per pair; no figure if nothing is confused."""
    pairs = evaluation.confused[:PAIRS]
    if not pairs:
        path.unlink(missing_ok=True)  # the figure of an earlier evaluation
        return
    labels = dataset.labels[: len(evaluation.predicted)]
    found = [
        ((labels == true) & (evaluation.predicted == predicted)).nonzero().flatten()[:EXAMPLES].numpy()
        for true, predicted in pairs
    ]
    columns = max(map(len, found))
    figure = Figure(figsize=(0.8 * columns + 2.5, 0.8 * len(pairs)), layout="constrained")
    for axis in figure.subplots(len(pairs), columns, squeeze=False).flat:
        axis.set_axis_off()
    for row, ((true, predicted), ids) in enumerate(zip(pairs, found, strict=True)):
        axes = figure.axes[row * columns :]
        name = f"{dataset.classes[true]}, predicted as {dataset.classes[predicted]}".replace("$", r"\$")
        where = axes[0].transAxes
        axes[0].text(-0.1, 0.5, name, ha="right", va="center", transform=where, fontsize=8, color="gray", wrap=True)
        images = dataset.fetch(ids, None).images.permute(0, 2, 3, 1).numpy()
        for axis, image in zip(axes, images, strict=False):
            axis.imshow(image, cmap="gray", vmin=0, vmax=255)
    figure.savefig(path, dpi=100, transparent=True)  # gray text on transparent: for light and dark pages
