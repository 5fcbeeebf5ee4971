"""What ``torch.compile`` has made, kept in the run folder, so that the next attempt need not compile it again.

Inductor caches kernels in TORCHINDUCTOR_CACHE_DIR, which in a job is on the local disk of each node and removed at the
end. Rank 0 keeps what was added there in one ZIP archive of the run folder, as shared disks are slow with many small
files and may have no flock, which Inductor needs. An archive is for one kind of node: kernels are compiled for the CPU
that they run on, which is no part of Inductor's keys.
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
from pathlib import Path

import torch

from slipway.environment import Environment
from slipway.files import replacing
from slipway.layout import COMPILED
from slipway.world import World

log = logging.getLogger(__name__)

CACHE = "TORCHINDUCTOR_CACHE_DIR"
"""Variable that names Inductor's cache."""
SETTLED = 2.0
"""Seconds without a change after which no compiler of another rank is writing a file any more."""


class CompiledCode:
    """Inductor's cache on this node, and what the run folder keeps of it."""

    def __init__(self, folder: Path, environment: Environment, world: World) -> None:
        """Unpack, on one rank of each node, what earlier attempts have kept; to be called before anything compiles.

        Args:
            folder: of the run.
            environment: of this process; where it names no cache, nothing is kept, as torch's own outlasts the run.
            world: of this rank.
        """
        named = environment.variables.get(CACHE)
        self._cache = Path(named) if named else None
        self._archive = folder / COMPILED / f"{kind_of_node()}.zip"
        self._names: set[str] = set()
        self._is_whole = False
        if self._cache and world.local_rank == 0:
            try:
                self._is_whole = _unpack(self._archive, self._cache)
            except (OSError, zipfile.BadZipFile) as error:
                log.warning("%s is not used, so torch.compile compiles anew: %s", self._archive, error)
            self._names = {name for name, _ in _files(self._cache)}

    def keep(self, *, settled: float = SETTLED) -> None:
        """Keep what was compiled since the last call, if it can be written; rank 0 alone calls this.

        Args:
            settled: seconds without a change after which nobody writes a file any more; 0 where all ranks have ended.
        """
        if self._cache is None:
            return
        latest = time.time() - settled
        added = sorted(name for name, changed in _files(self._cache) if name not in self._names and changed <= latest)
        if not added:
            return
        self._names.update(added)
        try:
            self._archive.parent.mkdir(exist_ok=True)
            with replacing(self._archive) as temporary:
                if self._is_whole:
                    shutil.copyfile(self._archive, temporary)
                with zipfile.ZipFile(temporary, "a", zipfile.ZIP_DEFLATED) as archive:
                    for name in added:
                        archive.write(self._cache / name, name)
            self._is_whole = True
        except (OSError, zipfile.BadZipFile) as error:
            log.warning("what torch.compile has made is not kept for the next attempt: %s", error)


def kind_of_node() -> str:
    """Return 16 hexadecimal digits that differ where native code might not be the same: by torch, CPU and system."""
    facts = [torch.__version__, platform.machine(), *platform.libc_ver()]
    with contextlib.suppress(OSError):
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        facts += [line for line in described if line.startswith(("model", "flags", "Features", "CPU"))]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _files(folder: Path) -> list[tuple[str, float]]:
    """Return name, relative to ``folder``, and time of change of its files, without locks and temporary ones."""
    found = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if path.suffix in {".lock", ".tmp"}:
                continue
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found.append((str(path.relative_to(folder)), status.st_mtime))
    return found


def _unpack(path: Path, cache: Path) -> bool:
    """Bring what ``path`` holds into ``cache``, each file atomically; return whether there is such an archive.

    It holds native code and pickles: only a file of this user's is taken.

    Raises:
        OSError, BadZipFile: if it cannot be read, or is another user's.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"it is no file of user {os.geteuid()}")
    cache.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory(dir=cache, suffix=".tmp") as unpacked:
        archive.extractall(unpacked)
        for name, _ in _files(Path(unpacked)):
            target = cache / name
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                Path(unpacked, name).replace(target)
    return True
