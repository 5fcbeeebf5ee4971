"""``torch.compile``'s cache in the run folder, so that the next job need not compile again.

Inductor's cache is on each node's local disk and is removed at the end of a job. Rank 0 saves its node's cache as one
ZIP archive in the run folder: shared disks are slow with many small files, and may not support flock, which Inductor
needs. Each archive is for one kind of node: kernels are compiled for the node's CPU, but Inductor's keys do not include
the CPU. Outside of jobs nothing is saved, because the cache outlives the run there.
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
"""Seconds without a change after which a file counts as complete: compilers write files incrementally."""
MOST = 1 << 30
"""Maximum bytes of an archive; one that would exceed this is replaced by the current cache alone."""


class CompiledCode:
    """Inductor's cache on this node and its archive in the run folder.

    Failures here only cost the next attempt time: they cause a warning and do not end the run.
    """

    def __init__(self, folder: Path, environment: Environment) -> None:
        """Use the run folder ``folder`` and the cache folder in ``environment``; without one, or a job, do nothing."""
        self._cache: Path | None = None
        if environment.attempt and environment.inductor_cache:
            self._cache = Path(environment.inductor_cache)
        self._folder = folder / COMPILED
        self._is_damaged = False

    @cached_property
    def _archive(self) -> Path:
        return self._folder / f"{node_fingerprint()}.zip"

    def unpack(self, world: World) -> None:
        """Unpack the archive into the cache, on one rank per node; call this before anything compiles."""
        if self._cache is None or not world.is_local_root:
            return
        try:
            _unpack(self._archive, self._cache)
        except FileNotFoundError:
            pass
        except Exception as error:  # noqa: BLE001 -- zlib, zipfile and the disk raise many
            self._is_damaged = not isinstance(error, OSError)  # an OSError may be a full local disk
            warn(log, "compiled-code-lost", "cannot use %s, so torch.compile compiles again: %s", self._archive, error)

    def save(self, *, settled: float = SETTLED) -> None:
        """Add the cache's new files to the archive; only rank 0 calls this.

        Args:
            settled: seconds without a change after which a file is complete; 0 after all ranks have stopped training.
        """
        if self._cache is None:
            return
        try:
            self._save(self._cache, time.time() - settled)
        except Exception as error:  # noqa: BLE001 -- as above
            warn(log, "compiled-code-lost", "cannot save torch.compile's cache for the next attempt: %s", error)

    def _save(self, cache: Path, latest: float) -> None:
        """Add to the archive the files in ``cache`` that were last changed before the time ``latest``."""
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


def node_fingerprint() -> str:
    """Return 16 hexadecimal digits that identify torch, CPU and C library, on which compiled code depends."""
    facts = [torch.__version__, platform.machine(), *platform.libc_ver()]
    with contextlib.suppress(OSError):
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        facts += [line for line in described if line.startswith(("model", "flags", "Features", "CPU", "cpu\t"))]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _files(folder: Path) -> list[tuple[str, int, float]]:
    """Return relative path, size in bytes and modification time of each file, except locks and temporary files."""
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
    """Return the names in an archive; an empty set if it cannot be used."""
    try:
        with _opened(path) as archive:
            return frozenset(archive.namelist())
    except Exception:  # noqa: BLE001 -- unpack has warned of it
        return frozenset()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive. It holds native code and pickles, so only this user may be able to write it.

    Raises:
        PermissionError: if another user owns the archive, or group or others can write it.
        OSError, BadZipFile: if it cannot be read.
    """
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError("you must own it, and no other user may be able to write it")
        with zipfile.ZipFile(file) as archive:
            yield archive


def _unpack(path: Path, cache: Path) -> None:
    """Unpack the archive ``path`` into ``cache``, each file atomically; existing files stay unchanged."""
    with _opened(path) as archive:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, suffix=".tmp") as unpacked:
            archive.extractall(unpacked)
            for name, _, _ in _files(Path(unpacked)):
                target = cache / name
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    Path(unpacked, name).replace(target)
