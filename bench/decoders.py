"""``python bench/decoders.py [--seeds N]``: compare the accuracy of training on images decoded by PIL and simplejpeg.

Two sets of JPEG files: the handwritten digits, enlarged to 96 x 96 pixels, and ``trainer make-data aerial``. For
each decoder and seed it trains a small CNN on random crops of 40 pixels and evaluates it on images decoded by PIL.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from trainer.config.settings import DataConfig
from trainer.data.sets import open_data

EDGE = 96
DECODERS = ("pil", "simplejpeg")
FLAGS = [
    *("--dataset", "imagefolder", "--arch", "mnist-cnn", "--image-size", "40", "--resized-crop"),
    *("--optimizer", "adamw", "--lr", "0.002", "--batch-size", "32", "--no-figures"),
]
EPOCHS = {"digits": 10, "aerial": 4}


def write_digits(folder: Path) -> None:
    """Write the digits as JPEG files that resemble photographs: smooth, in color, with compression artifacts."""
    for part, samples in zip(("train", "val"), open_data(DataConfig()), strict=True):
        images = samples.fetch(np.arange(len(samples)), None).images
        for number, (image, label) in enumerate(zip(images, samples.labels.tolist(), strict=True)):
            path = folder / part / samples.classes[label] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            large = Image.fromarray(image[0].numpy()).resize((EDGE, EDGE), Image.Resampling.BICUBIC)
            Image.merge("RGB", [large, large.transpose(Image.Transpose.ROTATE_180), large]).save(path, quality=90)


def write_aerial(folder: Path) -> None:
    """Write the aerial images as JPEG files."""
    call("make-data", "aerial", str(folder), "--image-size", str(EDGE), "--per-class", "60")
    for path in folder.rglob("*.png"):
        with Image.open(path) as image:
            image.convert("RGB").save(path.with_suffix(".jpg"), quality=90)
        path.unlink()


def call(*words: str) -> None:
    """Run the trainer; raise an error if it fails."""
    subprocess.run([sys.executable, "-m", "trainer", *words], check=True, stdout=subprocess.DEVNULL)


def accuracy(data: Path, run: Path, *flags: str) -> float:
    """Train, and return the validation accuracy in percent."""
    call(*FLAGS, "--data-dir", str(data), "--output-dir", str(run), *flags)
    call("evaluate", str(run), "--output", str(run.with_suffix(".evaluated")))
    return 100 * float(json.loads((run.with_suffix(".evaluated") / "evaluation.json").read_text())["accuracy"])


def main() -> None:
    """Train, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = range(parser.parse_args().seeds)
    print(f"| validation accuracy (%), {len(seeds)} seeds | " + " | ".join(DECODERS) + " |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, write in (("digits", write_digits), ("aerial", write_aerial)):
            write(data := Path(folder, name))
            cells = []
            for decoder in DECODERS:
                flags = ["--decoder", decoder, "--epochs", str(EPOCHS[name])]
                runs = [Path(folder, f"{name}-{decoder}-{seed}") for seed in seeds]
                found = [
                    accuracy(data, run, *flags, "--seed", str(seed)) for seed, run in zip(seeds, runs, strict=True)
                ]
                cells.append(f"{statistics.mean(found):.2f} ({min(found):.2f}-{max(found):.2f})")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
