"""Where the images of a set lie: in a folder for each class, or in a ZIP archive of such folders."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from slipway.archive import Archive, ArchiveError, Names
from slipway.packed import SUFFIXES, Images, find_images, root_of
from slipway.reading import open_regular
from trainer.data.base import Ids
from trainer.errors import ConfigError


class Files(Protocol):
    """Files by number."""

    def open(self, number: int) -> BinaryIO:
        """Open a file for reading.

        Raises:
            OSError: if it cannot be read.
            ArchiveError: if it is damaged.
        """
        ...

    def describe(self, number: int) -> str:
        """Return the path of a file."""
        ...


class Scanned(NamedTuple):
    """Images, in the order of their paths."""

    files: Files
    numbers: Ids
    """Which of the files they are."""
    labels: Tensor
    """int64 [n]"""
    classes: tuple[str, ...]


class Tree(Protocol):
    """Folders of images."""

    def has_folder(self, name: str) -> bool:
        """Return whether there is a folder of this name at the top."""
        ...

    def scan(self, part: str) -> Scanned:
        """Return the images below the folder ``part``, or "" for all; each class is a folder in it.

        Raises:
            ConfigError: if there is no such folder, or it cannot be read, or a class has no images.
        """
        ...


def open_tree(path: Path) -> Tree:
    """Return the folders below ``path``, or in the archive that it is.

    Raises:
        ConfigError: if it is a file that cannot be read, or no archive.
    """
    if not path.exists() or path.is_dir():
        return FolderTree(path)
    try:
        archive = Archive(path)
    except OSError as error:
        raise ConfigError("data-unreadable", f"cannot read --data-dir {path}: {error.strerror or error}.") from error
    except ArchiveError as error:
        raise ConfigError(
            "damaged-archive",
            f"--data-dir: {error}. A file that takes the place of a folder is written by trainer pack, or zip -0 -r.",
        ) from error
    return ArchiveTree(archive, root_of(archive.names))


@dataclass(frozen=True)
class FolderFiles:
    """Files below a folder."""

    root: Path
    names: Names

    def open(self, number: int) -> BinaryIO:
        """Open a file; see Files."""
        return open_regular(self.describe(number))

    def describe(self, number: int) -> str:
        """Return the path of a file."""
        return str(self.root / self.names[number])


@dataclass(frozen=True)
class FolderTree:
    """Folders on a disk."""

    root: Path

    def has_folder(self, name: str) -> bool:
        """Return whether there is a folder of this name at the top."""
        return (self.root / name).is_dir()

    def scan(self, part: str) -> Scanned:
        """Return the images below a folder; see Tree."""
        root = self.root / part
        if not root.is_dir():
            raise ConfigError(
                "no-data", f"there is no folder {root}: --data-dir must hold train/ and val/, or one folder a class."
            )
        classes = tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir()))
        names = Names(name for folder in classes for name in _files_below(root, folder))
        return _scanned(FolderFiles(root, names), find_images(names), classes, root)


@dataclass(frozen=True)
class ArchiveFiles:
    """Members of an archive."""

    archive: Archive

    def open(self, number: int) -> BinaryIO:
        """Read a member; see Files."""
        return io.BytesIO(self.archive.read(number))

    def describe(self, number: int) -> str:
        """Return the path of the archive and the member's in it."""
        return f"{self.archive.path}/{self.archive.names[number]}"


@dataclass(frozen=True)
class ArchiveTree:
    """Folders in an archive."""

    archive: Archive
    root: str
    """The folder in it for which it stands, or ""."""

    def has_folder(self, name: str) -> bool:
        """Return whether a member lies below a folder of this name at the top."""
        start = f"{self._below(name)}/"
        return any(member.startswith(start) for member in self.archive.names)

    def scan(self, part: str) -> Scanned:
        """Return the images below a folder; see Tree."""
        folder = self._below(part)
        found = find_images(self.archive.names, folder)
        return _scanned(ArchiveFiles(self.archive), found, found.classes, self.archive.path / folder)

    def _below(self, folder: str) -> str:
        return "/".join(filter(None, (self.root, folder)))


def _scanned(files: Files, found: Images, classes: Sequence[str], root: Path) -> Scanned:
    empty = sorted({*classes} - {*found.classes})
    if empty or not found.classes:
        which = f"in {', '.join(empty)}" if classes else "and no class folder"
        raise ConfigError(
            "no-images", f"{root}: no image {which}; each class needs a folder of {', '.join(sorted(SUFFIXES))}."
        )
    return Scanned(files, np.asarray(found.numbers), torch.from_numpy(np.array(found.labels)), found.classes)


def _files_below(root: Path, folder: str) -> Iterator[str]:
    """Yield the paths, below ``root``, of all files in one of its folders, not through links to folders.

    Raises:
        ConfigError: where a folder cannot be read: its images would be missing without a word.
    """

    def refuse(error: OSError) -> NoReturn:
        raise ConfigError("data-unreadable", f"cannot read the folder {error.filename}: {error.strerror}.") from error

    for parent, _, names in os.walk(root / folder, onerror=refuse):
        below = os.path.relpath(parent, root)
        yield from (f"{below}/{name}" for name in names)
