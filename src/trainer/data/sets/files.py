"""Image files of a data set: in one folder per class, or in a ZIP archive of such folders."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from slipway.base.bounded_read import open_regular
from slipway.base.flags import is_utf8
from slipway.data.archive import Archive, ArchiveError, Names
from slipway.data.packed import (
    SUFFIXES,
    Images,
    archive_root,
    find_images,
    ignored_folder_of,
    is_ignored_folder,
    is_image,
)
from trainer.config.errors import ConfigError
from trainer.data.base import Ids


class Files(Protocol):
    """Files with numbers."""

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
    """Images, ordered by path."""

    files: Files
    numbers: Ids
    """Number of each image among ``files``."""
    labels: Tensor
    """int64 [n]"""
    classes: tuple[str, ...]


class Tree(Protocol):
    """Folders of images, on a disk or in an archive."""

    @property
    def left_out(self) -> list[str]:
        """Paths of the folders that ``scan`` has skipped."""
        ...

    def has_folder(self, name: str) -> bool:
        """Return whether the top level has a folder of this name."""
        ...

    def scan(self, part: str) -> Scanned:
        """Return the images below the folder ``part`` ("": the top level), with one folder per class.

        Raises:
            ConfigError: if the folder is missing or cannot be read, or if a class has no images or its name is not
                UTF-8.
        """
        ...


def open_tree(path: Path) -> Tree:
    """Open ``path``, a folder or an archive.

    Raises:
        ConfigError: if ``path`` is a file that cannot be read or is not an archive.
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
            f"--data-dir: {error}. Create an archive of a folder with trainer pack or zip -0 -r.",
        ) from error
    return ArchiveTree(archive, archive_root(archive.names))


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
    left_out: list[str] = field(default_factory=list, init=False)

    def has_folder(self, name: str) -> bool:
        """Return whether the top level has a folder of this name."""
        return (self.root / name).is_dir()

    def scan(self, part: str) -> Scanned:
        """Return the images below a folder; see Tree."""
        root = self.root / part
        if not root.is_dir():
            raise ConfigError(
                "no-data", f"no folder {root}: --data-dir must hold train/ and val/, or one folder per class."
            )
        classes = tuple(self._classes(root))
        names = Names(name for folder in classes for name in self._files_below(root, folder))
        return _scanned(FolderFiles(root, names), find_images(names), classes, root)

    def _classes(self, root: Path) -> Iterator[str]:
        """Yield the names of the class folders in ``root``.

        Raises:
            ConfigError: if a link is broken, because a class would be missing silently.
        """
        for entry in sorted(root.iterdir()):
            hidden = is_ignored_folder(entry.name)
            if entry.is_dir() and hidden:
                self.left_out.append(os.path.relpath(entry, self.root))
            elif entry.is_dir():
                yield entry.name
            elif entry.is_symlink() and not (hidden or entry.exists() or is_image(entry.name)):
                raise ConfigError("data-unreadable", f"{entry} is a link to {entry.readlink()}, which does not exist.")

    def _files_below(self, root: Path, folder: str) -> Iterator[str]:
        """Yield the paths, relative to ``root``, of all files below ``folder``; do not follow links to folders.

        Raises:
            ConfigError: if a folder cannot be read, because its images would be missing silently.
        """

        def refuse(error: OSError) -> NoReturn:
            raise ConfigError(
                "data-unreadable", f"cannot read the folder {error.filename}: {error.strerror}."
            ) from error

        for parent, folders, names in os.walk(root / folder, onerror=refuse):
            unread = [name for name in folders if is_ignored_folder(name) or Path(parent, name).is_symlink()]
            self.left_out.extend(os.path.relpath(Path(parent, name), self.root) for name in sorted(unread))
            folders[:] = [name for name in folders if name not in unread]
            below = os.path.relpath(parent, root)
            yield from (f"{below}/{name}" for name in names)


@dataclass(frozen=True)
class ArchiveFiles:
    """Members of an archive."""

    archive: Archive

    def open(self, number: int) -> BinaryIO:
        """Read a member; see Files."""
        return io.BytesIO(self.archive.read(number))

    def describe(self, number: int) -> str:
        """Return the archive's path joined with the member's path."""
        return f"{self.archive.path}/{self.archive.names[number]}"


@dataclass(frozen=True)
class ArchiveTree:
    """Folders in an archive."""

    archive: Archive
    root: str
    """Folder in the archive that is the tree's top level, or ""."""
    left_out: list[str] = field(default_factory=list, init=False)

    def has_folder(self, name: str) -> bool:
        """Return whether the top level has a folder of this name that holds a member."""
        start = f"{self._below(name)}/"
        return any(member.startswith(start) for member in self.archive.names)

    def scan(self, part: str) -> Scanned:
        """Return the images below a folder; see Tree."""
        folder = self._below(part)
        found = find_images(self.archive.names, folder)
        start = f"{folder}/" if folder else ""
        images = (name for name in self.archive.names if name.startswith(start) and is_image(name))
        self.left_out.extend(
            start + name for name in sorted({ignored_folder_of(name[len(start) :]) for name in images} - {""})
        )
        return _scanned(ArchiveFiles(self.archive), found, found.classes, self.archive.path / folder)

    def _below(self, folder: str) -> str:
        return "/".join(filter(None, (self.root, folder)))


def _scanned(files: Files, found: Images, classes: Sequence[str], root: Path) -> Scanned:
    empty = sorted({*classes} - {*found.classes})
    if empty or not found.classes:
        which = f"in {', '.join(empty)}" if classes else "and no class folder"
        raise ConfigError(
            "no-images",
            f"{root}: no image {which}; each class needs a folder with files of {', '.join(sorted(SUFFIXES))}.",
        )
    for name in found.classes:
        if not is_utf8(name):
            raise ConfigError(
                "bad-path",
                f"the name of the class folder {name!r} in {root} is not UTF-8, which result tables need: rename it.",
            )
    return Scanned(files, np.asarray(found.numbers), torch.from_numpy(np.array(found.labels)), found.classes)


def skipped_message(left_out: Sequence[str]) -> str:
    """Return a message on the folders that a tree has skipped, with the paths of the first five; "" if none."""
    if not left_out:
        return ""
    more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""  # noqa: PLR2004
    return f"skipped hidden folders, folders of other programs, and links to folders: {', '.join(left_out[:5])}{more}"
