"""Run folders in the trainer's format for tests of ``trainer report``, created without training."""

import datetime as dt
import json
import math
import os
from pathlib import Path

CONFIG = """[data]
dataset = "digits"

[optim]
lr = {lr}

[train]
epochs = {epochs}
seed = {seed}
"""


def write(path: Path, value: object) -> None:
    """Write a string as text, or other values as JSON, to a file, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value) + "\n", encoding="utf-8")


def records(*, steps=200, per_epoch=20, every=5, rate=1000.0, batch=64, shift=0.0, data=0.05):
    """Return the records of a healthy training run: the loss falls, the accuracy rises.

    It spends a share ``data`` of its time waiting for data.
    """
    found = []
    waits = {"data_seconds": data * every * batch / rate, "save_seconds": 0.01}
    for step in range(every, steps + 1, every):
        place = {"step": step, "epoch": step / per_epoch, "elapsed": step * batch / rate}
        loss = 2.3 * math.exp(-step / 60) + 0.05 + 0.02 * math.sin(step) + shift
        speed = {"samples_per_second": rate + step % 7, **waits}
        found.append({"kind": "train", **place, "loss": loss, "lr": 0.1, **speed})
        if step % per_epoch == 0:
            accuracy = 1 - 0.9 * math.exp(-step / 50) - shift
            result = {"loss": loss + 0.02, "accuracy": accuracy, "top5": 1.0, "evaluation_seconds": 0.5}
            found.append({"kind": "validation", **place, **result})
    return found


def make_run(path: Path, *, found=None, state="done", reason="", lr=0.1, seed=0, ranks=1, attempts=1) -> Path:
    """Create a run folder whose last attempt ended in ``state``; the earlier ones ran out of time."""
    found = records() if found is None else found
    write(path / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in found))
    write(path / "config.toml", CONFIG.format(lr=lr, epochs=10, seed=seed))
    last = found[-1]["step"] if found else 0
    for number in range(1, attempts + 1):
        ended = number == attempts
        status = {
            "attempt": number,
            "state": state if ended else "stopped",
            "reason": reason if ended else "time-limit",
            "start_step": last * (number - 1) // attempts,
            "step": last * number // attempts,
            "requeue": not ended,
        }
        run = {
            "started": f"2026-01-01T{number:02}:00:00+0000",
            "host": "node1",
            "python": "3.12.3",
            "torch": "2.13.0",
            "world_size": ranks,
            "launch": {"backend": "ddp"},
            "attempt": number,
            "variables": {"WORLD_SIZE": str(ranks)},
        }
        for folder in (path, path / "logs" / str(number)):
            write(folder / "status.json", status)
            write(folder / "run.json", run)
        if not ended or state in {"done", "failed", "stopped"}:
            word = state if ended else "out-of-time"
            write(path / f"verdict.{number}", f"{word} {status['step']} {status['reason'] or 'complete'}\n")
            took = found[-1]["elapsed"] / attempts if found else 0.0
            ended_at = dt.datetime.fromisoformat(run["started"]).timestamp() + took
            os.utime(path / f"verdict.{number}", (ended_at, ended_at))
    return path


def make_confusion(path: Path, names=("cat", "dog", "owl")) -> None:
    """Add a confusion matrix in which one sample in ten is predicted as the next class."""
    size = len(names)
    rows = [[9 if column == row else int(column == (row + 1) % size) for column in range(size)] for row in range(size)]
    quoted = ['"' + name.replace('"', '""') + '"' for name in names]
    lines = [",".join(["true \\ predicted", *quoted, "total"])]
    lines += [",".join([name, *map(str, row), str(sum(row))]) for name, row in zip(quoted, rows, strict=True)]
    lines.append(",".join(["total", *map(str, map(sum, zip(*rows, strict=True))), str(10 * size)]))
    write(path / "figures" / "confusion.csv", "\n".join(lines) + "\n")


def make_study(path: Path, *, scaling="strong", rates=((1, 1000.0), (2, 1900.0), (4, 3400.0), (8, 4200.0))) -> Path:
    """Create a study folder whose points have the given (ranks, samples/s), with one core per rank."""
    points = []
    for ranks, rate in rates:
        name = f"r{ranks}-c1"
        make_run(path / name, found=records(rate=rate, shift=0.0 if scaling == "strong" else ranks / 100), ranks=ranks)
        submitted = f"2026-01-01T00:{60 - ranks}:00+00:00"  # its first attempt starts at 01:00
        point = {"name": name, "run": name, "nodes": 1, "ranks": ranks, "cpus": 1, "backend": "ddp"}
        points.append({**point, "container": False, "submitted": submitted, "job": str(100 + ranks)})
    write(path / "study.json", {"schema": 1, "kind": "study", "scaling": scaling, "points": points})
    return path
