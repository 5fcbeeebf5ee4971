"""Diagrams of the documentation: the parts of Slipway, the life of a job, and the time line of a time limit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from canvas import BLUE, GRAY, GREEN, ORANGE, RED, Canvas

SAVE_SECONDS = "180 to 240 s"
"""Time between the warning and the time limit, as in docs/howto/time-limit.md."""


def overview(path: Path) -> None:
    """Draw how script and site become ranks on nodes, which stop, requeue and resume."""
    canvas = Canvas(900, 250)
    canvas.box(15, 40, 150, 60, "my_train.py", text="your script", colour=BLUE)
    canvas.box(15, 130, 150, 60, "site file", text="your cluster", colour=BLUE)
    canvas.box(225, 75, 130, 80, "jobgen", text="checks, writes\nthe job script", colour=ORANGE)
    canvas.box(415, 75, 130, 80, "job script", text="sbatch or qsub,\nplain Bash", colour=ORANGE)
    canvas.arrow((165, 70), (225, 100))
    canvas.arrow((165, 160), (225, 130))
    canvas.arrow((355, 115), (415, 115))
    for number, top in enumerate((30, 125), start=1):
        canvas.box(
            615,
            top,
            265,
            80,
            f"node {number}",
            colour=GREEN,
            text="4 ranks, one for each GPU,\nin the image or environment",
        )
    canvas.arrow((545, 105), (615, 75))
    canvas.arrow((545, 125), (615, 160))
    canvas.arrow((747, 207), (480, 157), bend=-0.25, colour=RED)
    canvas.note(610, 238, "time limit or failure: stop, requeue, resume", size=10, colour=RED)
    canvas.save(path)


def life_of_a_job(path: Path) -> None:
    """Draw the states of a job, from its submission to its last attempt."""
    canvas = Canvas(900, 400)
    steps = [
        ("pending", "the scheduler\nqueues the job"),
        ("starting", "the script checks\nimage, data, nodes"),
        ("running", "ranks train, and\nsave checkpoints"),
        ("done", "figures, weights,\nexit code 0"),
    ]
    lefts = (20, 245, 470, 725)
    for (title, text), left in zip(steps, lefts, strict=True):
        canvas.box(left, 150, 155, 80, title, text=text, colour=GREEN if title == "done" else BLUE)
    for left, right in pairwise(lefts):
        canvas.arrow((left + 155, 190), (right, 190))
    canvas.box(470, 20, 155, 70, "crashed", text="a rank, a launcher\nor a node died", colour=RED)
    canvas.arrow((530, 150), (530, 90), colour=RED)
    canvas.arrow((565, 90), (565, 150), colour=GREEN)
    canvas.note(575, 120, "restart in the same job", size=10, colour=GREEN, align="left")
    canvas.box(470, 300, 155, 70, "out-of-time", text="saved before\nthe time limit", colour=ORANGE)
    canvas.arrow((547, 230), (547, 300), colour=ORANGE)
    canvas.arrow((470, 345), (97, 230), bend=-0.28, colour=ORANGE)
    canvas.note(300, 300, "requeue (Slurm), or the next\njob of a chain (PBS)", size=10, colour=ORANGE)
    canvas.box(725, 300, 155, 70, "stopped", text="cancelled: saved,\nexit code 75", colour=GRAY)
    canvas.arrow((600, 230), (725, 320))
    canvas.box(245, 20, 155, 70, "failed", text="exit code 78 or 2:\nno restart", colour=RED)
    canvas.arrow((322, 150), (322, 90), colour=RED)
    canvas.save(path)


def time_limit(path: Path) -> None:
    """Draw what happens in the last minutes of a job and in the first of the next one."""
    canvas = Canvas(900, 220)
    canvas.bar(20, 60, 350, 40, "ranks train", colour=BLUE)
    canvas.bar(370, 60, 70, 40, "save", colour=GREEN)
    canvas.bar(440, 60, 100, 40, "exit, requeue", colour=ORANGE)
    canvas.bar(610, 60, 100, 40, "in the queue", colour=GRAY)
    canvas.bar(710, 60, 70, 40, "checks", colour=GRAY)
    canvas.bar(780, 60, 105, 40, "ranks train", colour=BLUE)
    canvas.note(20, 40, "job 4711, attempt 1", size=10, weight="bold", align="left")
    canvas.note(610, 118, "attempt 2 (PBS: the next job)", size=10, weight="bold", align="left")
    for x, text in ((370, "USR1; PBS: the\nscript's own clock"), (570, "time limit")):
        canvas.axis.plot([x, x], [52, 145], color=RED, linewidth=1, linestyle=":")
        canvas.note(x, 160 + 8 * text.count("\n"), text, size=10, colour=RED)
    canvas.axis.annotate("", (570, 135), (370, 135), arrowprops={"arrowstyle": "<->", "color": GRAY})
    canvas.note(470, 122, SAVE_SECONDS, size=9.5, colour=GRAY)
    canvas.arrow((405, 60), (830, 60), bend=-0.12, colour=GREEN)
    canvas.note(520, 18, "resumes at the next batch of the same epoch", size=10, colour=GREEN)
    canvas.save(path)
