"""``trainer make-data SET DIR``: write a small generated data set for a first try without real data."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

from slipway.base.errors import did_you_mean
from trainer.config import arguments
from trainer.config.errors import ConfigError
from trainer.data import seeds
from trainer.data.sets.aerial import LOOKS, draw

NAME = "make-data"
SETS = ("aerial",)
OWN = {
    "per_class": {
        "flag": "--per-class",
        "type": "integer",
        "minimum": 1,
        "default": 40,
        "description": "Pictures per class; the trainer holds out a fifth of them for validation.",
    },
    "image_size": {
        "flag": "--image-size",
        "type": "integer",
        "minimum": 8,
        "default": 64,
        "description": "Edge of the pictures, in pixels.",
    },
    "seed": {
        "flag": "--seed",
        "type": "integer",
        "minimum": 0,
        "default": 0,
        "description": "Random seed; the same seed makes the same pictures.",
    },
}


def main(argv: list[str]) -> int:
    """Write the data set that ``argv`` requests; return the exit code.

    Raises:
        ConfigError: for an unknown data set, or if the folder exists already or cannot be written.
    """
    found = arguments.read(NAME, argv, OWN, {})
    name, folder = found.names[0], Path(found.names[1])
    if name not in SETS:
        raise ConfigError(
            "bad-flag-value",
            f"{NAME}: unknown data set {name!r}.{did_you_mean(name, SETS)} Valid: {', '.join(SETS)}.",
        )
    write_aerial(folder, **found.own)
    count = len(LOOKS) * found.own["per_class"]
    sys.stdout.write(f"{folder}: {count} pictures of {len(LOOKS)} classes; train on them with --data-dir {folder}\n")
    return 0


def write_aerial(folder: Path, *, per_class: int, image_size: int, seed: int) -> None:
    """Write a folder of PNG files for each class into ``folder``: all files or nothing.

    Raises:
        ConfigError: if ``folder`` exists already or cannot be written.
    """
    if folder.is_symlink() or folder.exists():
        raise ConfigError("file-exists", f"{folder} exists already: choose another folder, or remove it.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
            made = Path(temporary, "made")
            for number, (kind, look) in enumerate(LOOKS.items()):
                (made / kind).mkdir(parents=True)
                generator = seeds.stream(seeds.AERIAL, seed, number)
                for index in range(per_class):
                    picture = Image.fromarray(draw(look, image_size, generator))
                    picture.save(made / kind / f"{kind}{index:02}.png")
            made.rename(folder)
    except OSError as error:
        raise ConfigError(
            "cannot-write", f"cannot write {error.filename or folder} ({error.strerror or error})."
        ) from error
