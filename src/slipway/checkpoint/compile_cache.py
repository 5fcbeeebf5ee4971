"""What ``torch.compile`` has made in a job, kept in the run folder, so that the next one need not compile it again.

Inductor's cache is on the local disk of each node, and is removed at a job's end. Rank 0 keeps that of its node in one
ZIP archive of the run folder, as shared disks are slow with many small files and may have no flock, which Inductor
needs. An archive is for one kind of node: kernels are compiled for the CPU that they run on, which is no part of
Inductor's keys. Outside of jobs nothing is kept: the cache outlasts the run there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch

from slipway.base.bounded_read import open_regular
from slipway.base.contract import COMPILED
from slipway.base.environment import Environment, World
from slipway.base.errors import warn
from slipway.base.files import replacing

log = logging.getLogger(__name__)

SETTLED = 2.0
"""Seconds without a change after which a file is taken for complete: compilers write them bit by bit."""
MOST = 1 << 30
"""Bytes of an archive; one that would grow beyond is begun anew, with what this job has used."""


class CompiledCode:
    """Inductor's cache on this node, and what the run folder keeps of it.

    Whatever fails here costs the next attempt time, and is warned of: it does not end a run.
    """

    def __init__(self, folder: Path, environment: Environment) -> None:
        """Keep in the run folder ``folder`` what this process finds in the cache that ``environment`` names."""
        self._cache: Path | None = None
        if environment.attempt and environment.inductor_cache:
            self._cache = Path(environment.inductor_cache)
        self._folder = folder / COMPILED
        self._is_damaged = False

    @cached_property
    def _archive(self) -> Path:
        return self._folder / f"{kind_of_node()}.zip"

    def unpack(self, world: World) -> None:
        """Bring what was kept into the cache, on one rank of each node; to be called before anything compiles."""
        if self._cache is None or not world.is_first_of_node:
            return
        try:
            _unpack(self._archive, self._cache)
        except FileNotFoundError:
            pass
        except Exception as error:  # noqa: BLE001 -- zlib, zipfile and the disk have many
            self._is_damaged = not isinstance(error, OSError)  # which may be a full disk here
            warn(log, "compiled-code-lost", "%s is not used, so torch.compile compiles anew: %s", self._archive, error)

    def save(self, *, settled: float = SETTLED) -> None:
        """Keep what the cache holds; rank 0 alone calls this.

        Args:
            settled: seconds without a change after which a file is complete; 0 where no rank trains any more.
        """
        if self._cache is None:
            return
        try:
            self._save(self._cache, time.time() - settled)
        except Exception as error:  # noqa: BLE001 -- likewise
            warn(log, "compiled-code-lost", "what torch.compile has made is not kept for the next attempt: %s", error)

    def _save(self, cache: Path, latest: float) -> None:
        """Add to the archive the files of ``cache`` that were last changed before ``latest``."""
        found = {name: size for name, size, changed in _files(cache) if changed <= latest}
        kept = frozenset() if self._is_damaged else _names(self._archive)
        added = sorted(found.keys() - kept)
        if not added:
            return
        if kept and self._archive.stat().st_size + sum(found[name] for name in added) > MOST:
            kept, added = frozenset(), sorted(found)
        self._folder.mkdir(mode=0o755, exist_ok=True)
        for left in self._folder.glob(".*.zip"):  # by an attempt that was killed
            left.unlink()
        with replacing(self._archive) as temporary:
            if kept:
                shutil.copyfile(self._archive, temporary)
            with zipfile.ZipFile(temporary, "a", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
                for name in added:
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        archive.write(cache / name, name)
        self._archive.chmod(0o600)
        self._is_damaged = False


def kind_of_node() -> str:
    """Return 16 hexadecimal digits that differ where native code might not be the same: by torch, CPU and system."""
    facts = [torch.__version__, platform.machine(), *platform.libc_ver()]
    with contextlib.suppress(OSError):
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        facts += [line for line in described if line.startswith(("model", "flags", "Features", "CPU", "cpu\t"))]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _files(folder: Path) -> list[tuple[str, int, float]]:
    """Return name, relative to ``folder``, size in bytes and time of change of all but locks and temporary files."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.suffix in {".lock", ".tmp"}:
                continue
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found.append((str(path.relative_to(folder)), status.st_size, status.st_mtime))
    return found


def _names(path: Path) -> frozenset[str]:
    """Return the names in an archive; none if it cannot be used."""
    try:
        with _opened(path) as archive:
            return frozenset(archive.namelist())
    except Exception:  # noqa: BLE001 -- unpack has warned of it
        return frozenset()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive. It holds native code and pickles: nobody else may be able to write it.

    Raises:
        PermissionError: if somebody else can.
        OSError, BadZipFile: if it cannot be read.
    """
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError("others than its owner, who has to be you, can write it")
        with zipfile.ZipFile(file) as archive:
            yield archive


def _unpack(path: Path, cache: Path) -> None:
    """Bring what the archive ``path`` holds into ``cache``, each file atomically; what is there already stays."""
    with _opened(path) as archive:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, suffix=".tmp") as unpacked:
            archive.extractall(unpacked)
            for name, _, _ in _files(Path(unpacked)):
                target = cache / name
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    Path(unpacked, name).replace(target)
