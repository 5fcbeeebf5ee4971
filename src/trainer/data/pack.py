"""``trainer pack SRC DST``: pack a folder of images into a ZIP archive that ``--data-dir`` accepts."""

from __future__ import annotations

import fcntl
import io
import os
import sys
import time
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from PIL import Image
from tqdm import tqdm

from slipway.base.bounded_read import read_whole
from slipway.base.files import sync_folder
from slipway.base.flags import is_utf8
from slipway.data.archive import LOCAL, Archive
from trainer.config import arguments
from trainer.config.errors import ConfigError
from trainer.config.settings import DataConfig
from trainer.data.sets.files import FolderTree, skipped_message

NAME = "pack"
OWN = {
    "shorter_side": {
        "flag": "--shorter-side",
        "type": "integer",
        "minimum": 0,
        "default": 0,
        "description": "Downscale color and grey images whose shorter side has more pixels than this; 0 packs all "
        "files unchanged. Training on downscaled images is faster, but its results differ.",
    },
    "quality": {
        "flag": "--quality",
        "type": "integer",
        "minimum": 1,
        "maximum": 100,
        "default": 90,
        "description": "Quality of downscaled JPEG and WebP images, on PIL's scale.",
    },
}
REDUCED = {"RGB", "L"}
"""PIL's modes of images that are downscaled; other modes, such as palettes and 16-bit grey, are packed unchanged."""
AHEAD = 4
"""Most files per thread that are read and downscaled ahead of the writer."""
DATES = (1980, 2107)
"""First and last year that a ZIP archive can store (APPNOTE 4.4.6)."""


class Packed(NamedTuple):
    """A file's header and content for the archive."""

    info: zipfile.ZipInfo
    data: bytes


@dataclass(frozen=True)
class PackingSource:
    """Files to pack, with the settings for downscaling."""

    root: Path
    names: list[str]
    """Paths of the files, relative to ``root`` and in the archive."""
    shorter_side: int
    quality: int

    def read(self, name: str) -> Packed:
        """Read a file, and downscale it if so configured.

        Raises:
            ConfigError: if the file cannot be read.
        """
        path = self.root / name
        try:
            info, data = self.info(name), read_whole(path)
        except OSError as error:
            raise ConfigError(
                "data-unreadable",
                f"cannot read {path}: {error.strerror}; remove or repair it, and run the same command again.",
            ) from error
        return Packed(info, reduced(data, self.shorter_side, self.quality) if self.shorter_side else data)

    def differs(self, name: str, size: int) -> bool:
        """Return whether a file is packed unchanged and its size is not ``size``."""
        return not self.shorter_side and (self.root / name).stat().st_size != size

    def info(self, name: str) -> zipfile.ZipInfo:
        """Return the archive's header of a file.

        Raises:
            OSError: if the file does not exist.
        """
        status = (self.root / name).stat()
        year, month, day, hour, minute, second = time.gmtime(status.st_mtime)[:6]  # UTC, so that nodes agree
        date = (min(max(year, DATES[0]), DATES[1]), month, day, hour, minute, second)
        info = zipfile.ZipInfo(name, date)
        info.external_attr = (status.st_mode & 0o777) << 16
        return info


def main(argv: list[str]) -> int:
    """Pack the folder that ``argv`` requests; return the exit code.

    Raises:
        ConfigError: if the folder has no images, or if a file cannot be read or written.
    """
    found = arguments.read(NAME, argv, OWN, {})
    folder, target = map(Path, found.names)
    source, classes = _source(folder, **found.own)
    pack(source, target)
    size = target.stat().st_size
    sys.stdout.write(
        f"{target}: {len(source.names):,} images of {classes:,} classes, {size / 1e6:,.1f} MB; train on them with "
        f"--data-dir {target}\n"
    )
    return 0


def _source(folder: Path, shorter_side: int, quality: int) -> tuple[PackingSource, int]:
    """Return the images below a folder laid out as for ``--data-dir``, and the number of classes."""
    if folder.is_file():
        raise ConfigError("not-a-folder", f"{folder} is a file: give the folder of images to pack.")
    tree = FolderTree(folder)
    parts = ["train", "val"] if tree.has_folder("train") or tree.has_folder("val") else [""]
    names, classes = [], 0
    for part in parts:
        scanned = tree.scan(part)
        names += [os.path.relpath(scanned.files.describe(number), folder) for number in scanned.numbers.tolist()]
        classes = len(scanned.classes)
    if text := skipped_message(tree.left_out):
        sys.stderr.write(f"trainer: {folder}: {text}\n")
    for name in names:
        if not is_utf8(name):
            raise ConfigError(
                "bad-path", f"the name of {folder}/{name} is not UTF-8, which an archive needs: rename it."
            )
    return PackingSource(folder, names, shorter_side, quality), classes


def pack(source: PackingSource, target: Path) -> None:
    """Write the archive ``target``; if this is interrupted, a later call continues from its partial file.

    Raises:
        ConfigError: if ``target`` exists already, or if a file cannot be read or written.
    """
    if not target.parent.is_dir():
        raise ConfigError("cannot-write", f"the folder {target.parent} does not exist: create it first.")
    _require_absent(target)
    how = f".{source.shorter_side}q{source.quality}" if source.shorter_side else ""
    partial = target.with_name(f"{target.name}{how}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b") as file:
            _lock(file, partial)
            _write(source, file, partial)
            file.flush()
            os.fsync(file.fileno())
            if len(Archive(partial)) != len(source.names):
                raise ConfigError("damaged-archive", f"{partial} does not have all files: remove it, and start again.")
            _require_absent(target)
            partial.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        raise ConfigError(
            "cannot-write",
            f"cannot write {partial} ({error.strerror or error}). The file is kept; the same command continues it.",
        ) from error


def _require_absent(target: Path) -> None:
    if os.path.lexists(target):
        raise ConfigError("file-exists", f"{target} exists already: choose another file, or remove it.")


def _lock(file: BinaryIO, path: Path) -> None:
    """Check that no other process is writing this file (if the file system has locks), and that none has completed it.

    Raises:
        ConfigError: if another process is writing it or has completed it.
    """
    refusal = ConfigError("folder-in-use", f"another trainer pack is writing {path}.")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise refusal from error
    except OSError:
        pass  # the file system has no locks
    try:
        is_there = os.path.samestat(os.fstat(file.fileno()), path.lstat())
    except FileNotFoundError:
        is_there = False
    if not is_there:
        raise refusal


def _write(source: PackingSource, file: BinaryIO, path: Path) -> None:
    """Keep the complete members in ``file``, write the missing ones after them, and then the central directory."""
    whole, end = [], 0
    file.seek(0)
    for name, member in zip(source.names, iter(lambda: _next_member(file), None), strict=False):
        info = source.info(name)
        info.header_offset, info.CRC, info.compress_size, info.file_size = end, member.crc, member.size, member.size
        if info.FileHeader(zip64=False) != member.header or source.differs(name, member.size):
            raise ConfigError(
                "different-data",
                f"{source.root / name} is new or has changed since {path} was started: remove {path} to start again.",
            )
        whole.append(info)
        end = file.tell()
    file.seek(end)
    file.truncate()
    with zipfile.ZipFile(file, "w") as archive:
        archive.filelist += whole
        with tqdm(total=len(source.names), initial=len(whole), unit=" images", disable=None) as bar:
            for info, data in _read_ahead(source, source.names[len(whole) :]):
                archive.writestr(info, data)
                bar.update()


def _read_ahead(source: PackingSource, names: list[str]) -> Iterator[Packed]:
    """Yield files in order, read and downscaled by one thread per CPU, because PIL computes without the GIL."""
    threads = len(os.sched_getaffinity(0))
    read: deque[Future[Packed]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for name in names:
            read.append(pool.submit(source.read, name))
            if len(read) > AHEAD * threads:
                yield read.popleft().result()
        while read:
            yield read.popleft().result()


class Member(NamedTuple):
    """A complete member of a partial archive."""

    header: bytes
    """Local header, with the name and the modification time."""
    crc: int
    size: int


def _next_member(file: BinaryIO) -> Member | None:
    """Return the next member in ``file``; None if it is incomplete, because zipfile writes the checksum last."""
    header = file.read(LOCAL.size)
    if len(header) < LOCAL.size:
        return None
    magic, *_, crc, stored, size, name_length, extra_length = LOCAL.unpack(header)
    name, data = file.read(name_length), file.read(stored)
    whole = magic == b"PK\3\4" and not extra_length and stored == size == len(data) and zlib.crc32(data) == crc
    return Member(header + name, crc, size) if whole else None


def reduced(data: bytes, shorter_side: int, quality: int) -> bytes:
    """Return an image file with fewer pixels in the same format, or ``data`` itself if that is not smaller.

    Return ``data`` also if the image is damaged, so that training reports it, and if it has more pixels than training
    decodes by default.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            scale = shorter_side / min(image.size)
            if scale >= 1 or image.mode not in REDUCED or image.width * image.height > DataConfig().max_image_pixels:
                return data
            width, height = (max(1, round(scale * edge)) for edge in image.size)
            small = image.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0)
            kept = {name: image.info[name] for name in ("exif", "icc_profile") if name in image.info}
            file = io.BytesIO()
            small.save(file, image.format, quality=quality, **kept)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 -- PIL raises many types for damaged files
        return data
    return min(file.getvalue(), data, key=len)
