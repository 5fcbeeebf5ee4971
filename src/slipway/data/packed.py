"""Image data set in a ZIP archive with one folder per class, as ``trainer pack`` or ``zip`` writes it."""

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
"""Suffixes of image files, in lower case."""
IGNORED_FOLDERS = {"__MACOSX", "@eaDir", "lost+found"}
"""Ignored folders, which macOS adds to an archive, Synology's DSM to any folder, and ext4 to a disk."""


class Images(NamedTuple):
    """The images among a list of files, in the order of their paths."""

    numbers: array[int]
    """Indices into the list of files."""
    labels: array[int]
    """Class numbers, indices into ``classes``."""
    classes: tuple[str, ...]


def find_images(names: Iterable[str], folder: str = "") -> Images:
    """Return the images below ``folder`` among the paths ``names``; each class is a folder in ``folder``.

    Images below a folder that ``is_ignored_folder`` are ignored. If several files have the same name, the last one
    counts, as for programs that unpack an archive.
    """
    start = f"{folder}/" if folder else ""
    found = {
        name[len(start) :].replace("/", "\0"): number  # sorts a folder's files before those of one with a longer name
        for number, name in enumerate(names)
        if name.startswith(start)
        and "/" in name[len(start) :]
        and is_image(name)
        and not ignored_folder_of(name[len(start) :])
    }
    paths = sorted(found)
    classes = tuple(dict.fromkeys(path.partition("\0")[0] for path in paths))
    label_of = {name: label for label, name in enumerate(classes)}
    labels = array("q", (label_of[path.partition("\0")[0]] for path in paths))
    return Images(array("q", (found[path] for path in paths)), labels, classes)


def archive_root(names: Iterable[str]) -> str:
    """Return an archive's root folder, which holds all class folders; "" if these are at the archive's top.

    ``zip -r photos.zip photos`` creates an archive with such a root folder; ``trainer pack`` creates one without.
    """
    tops = set()
    for name in filter(is_image, names):
        if ignored_folder_of(name):
            continue
        top, *below = name.split("/")
        if len(below) < len(("class", "image")) or top in {"train", "val"}:
            return ""
        tops.add(top)
    return tops.pop() if len(tops) == 1 else ""


def is_image(name: str) -> bool:
    """Return whether a path has an image's suffix."""
    stem, _, suffix = name.rpartition("/")[2].rpartition(".")  # pathlib is slower, and there may be millions of names
    return bool(stem) and f".{suffix.lower()}" in SUFFIXES


def is_ignored_folder(folder: str) -> bool:
    """Return whether to ignore a folder of this name: hidden, such as ``.ipynb_checkpoints``, or in IGNORED_FOLDERS."""
    return folder.startswith(".") or folder in IGNORED_FOLDERS


def ignored_folder_of(path: str) -> str:
    """Return the path of the first ignored folder above a file; "" if there is none."""
    folders = path.split("/")[:-1]
    for depth, name in enumerate(folders, start=1):
        if is_ignored_folder(name):
            return "/".join(folders[:depth])
    return ""


class PackedImages(Dataset[tuple[Any, int]]):
    """Data set of the images in a ZIP archive and their class numbers, like torchvision's ImageFolder.

    Images can be read in any order, also in a DataLoader's workers. Each read is one call and verifies the checksum.
    Hidden folders, ``__MACOSX``, ``@eaDir`` and ``lost+found`` are ignored.
    """

    def __init__(self, path: str | Path, folder: str = "", *, transform: Callable[[Any], Any] | None = None) -> None:
        """Open an archive.

        Args:
            path: path of the archive.
            folder: folder in the archive with one folder per class, such as ``"train"``; default: the archive's top.
            transform: takes an RGB PIL image and returns the sample.

        Raises:
            SessionError: if the archive cannot be read, is damaged, or has no images in the folder.
        """
        try:
            self._archive = Archive(Path(path))
        except OSError as error:
            raise SessionError("data-unreadable", f"cannot open {path}: {error}") from error
        except ArchiveError as error:
            raise SessionError("damaged-archive", f"cannot open: {error}") from error
        names = self._archive.names
        self._numbers, self.targets, self.classes = find_images(
            names, "/".join(filter(None, (archive_root(names), folder)))
        )
        if not self.classes:
            inside = f" below {folder}/" if folder else ""
            raise SessionError("no-images", f"{path}: no images{inside}; it must contain one folder per class.")
        self.class_to_idx = {name: label for label, name in enumerate(self.classes)}
        self.transform = transform

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._numbers)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return a transformed image and its class number.

        Raises:
            SessionError: if the image cannot be read or is damaged.
        """
        from PIL import Image  # noqa: PLC0415 -- slipway itself needs no PIL

        number = self._numbers[index]
        try:
            with Image.open(io.BytesIO(self._archive.read(number))) as image:
                sample = image.convert("RGB")
        except MemoryError:
            raise
        except Exception as error:  # PIL raises many kinds for damaged images
            raise SessionError(
                "data-unreadable", f"cannot read {self._archive.path}/{self._archive.names[number]}: {error}"
            ) from error
        return (self.transform(sample) if self.transform else sample), self.targets[index]
