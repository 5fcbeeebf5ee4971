"""A folder of images for each class, packed into a ZIP archive: ``trainer pack`` writes one, and ``zip`` too."""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from torch.utils.data import Dataset

from slipway.base.errors import SessionError
from slipway.data.archive import Archive, ArchiveError

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm"}
"""Of files that are taken for images, in lower case."""
LEFT_OUT = {"__MACOSX", "@eaDir", "lost+found"}
"""Folders that macOS adds to an archive, Synology's DSM to any folder, and ext4 to a disk."""


class Images(NamedTuple):
    """The images among some files, in the order of their paths."""

    numbers: array[int]
    """Which of the files they are."""
    labels: array[int]
    classes: tuple[str, ...]


def find_images(names: Iterable[str], folder: str = "") -> Images:
    """Return the images among files whose paths are ``names``, below ``folder``, in which each class is a folder.

    Those below a folder that ``is_left_out`` are not counted. Of files of the same name the last one counts, as to
    programs that unpack an archive.
    """
    start = f"{folder}/" if folder else ""
    found = {
        name[len(start) :].replace("/", "\0"): number  # sorts a folder's files before those of one with a longer name
        for number, name in enumerate(names)
        if name.startswith(start)
        and "/" in name[len(start) :]
        and is_image(name)
        and not left_out_of(name[len(start) :])
    }
    paths = sorted(found)
    classes = tuple(dict.fromkeys(path.partition("\0")[0] for path in paths))
    label_of = {name: label for label, name in enumerate(classes)}
    labels = array("q", (label_of[path.partition("\0")[0]] for path in paths))
    return Images(array("q", (found[path] for path in paths)), labels, classes)


def root_of(names: Iterable[str]) -> str:
    """Return the folder for which an archive stands: the one that holds all images, each in a folder of its class.

    "" is returned for the archive itself, as of ``trainer pack``; ``zip -r photos.zip photos`` has such a folder.
    """
    tops = set()
    for name in filter(is_image, names):
        if left_out_of(name):
            continue
        top, *below = name.split("/")
        if len(below) < len(("class", "image")) or top in {"train", "val"}:
            return ""
        tops.add(top)
    return tops.pop() if len(tops) == 1 else ""


def is_image(name: str) -> bool:
    """Return whether a path has the suffix of an image."""
    stem, _, suffix = name.rpartition("/")[2].rpartition(".")  # pathlib takes longer, and names may be millions
    return bool(stem) and f".{suffix.lower()}" in SUFFIXES


def is_left_out(folder: str) -> bool:
    """Return whether a folder of this name holds no samples: hidden, as ``.ipynb_checkpoints``, or of LEFT_OUT."""
    return folder.startswith(".") or folder in LEFT_OUT


def left_out_of(path: str) -> str:
    """Return the path of the first folder on the way to a file that is left out, or ""."""
    folders = path.split("/")[:-1]
    for depth, name in enumerate(folders, start=1):
        if is_left_out(name):
            return "/".join(folders[:depth])
    return ""


class PackedImages(Dataset[tuple[Any, int]]):
    """Images of a ZIP archive and the numbers of their classes, as torchvision's ImageFolder gives those of a folder.

    Images are read at random, each by one call, by the workers of a DataLoader too, and checked against their
    checksums. Hidden folders, ``__MACOSX``, ``@eaDir`` and ``lost+found`` are left out.
    """

    def __init__(self, path: str | Path, folder: str = "", *, transform: Callable[[Any], Any] | None = None) -> None:
        """Open an archive.

        Args:
            path: of the archive.
            folder: in it, with a folder for each class: ``"train"``, say; by default the archive itself.
            transform: takes a PIL image, RGB, and returns the sample.

        Raises:
            SessionError: if it cannot be read, is damaged, or has no images there.
        """
        try:
            self._archive = Archive(Path(path))
        except OSError as error:
            raise SessionError("data-unreadable", f"cannot open {path}: {error}") from error
        except ArchiveError as error:
            raise SessionError("damaged-archive", f"cannot open: {error}") from error
        names = self._archive.names
        self._numbers, self.targets, self.classes = find_images(names, "/".join(filter(None, (root_of(names), folder))))
        if not self.classes:
            inside = f" below {folder}/" if folder else ""
            raise SessionError("no-images", f"{path}: no images{inside}; it must hold a folder of them for each class.")
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        self.transform = transform

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._numbers)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return an image, transformed, and its class.

        Raises:
            SessionError: if it is damaged.
        """
        from PIL import Image  # noqa: PLC0415 -- slipway itself needs no PIL

        number = self._numbers[index]
        try:
            with Image.open(io.BytesIO(self._archive.read(number))) as image:
                sample = image.convert("RGB")
        except MemoryError:
            raise
        except Exception as error:  # PIL has many of damage
            raise SessionError(
                "data-unreadable", f"cannot read {self._archive.path}/{self._archive.names[number]}: {error}"
            ) from error
        return (self.transform(sample) if self.transform else sample), self.targets[index]
