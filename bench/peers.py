"""Third-party libraries in separate folders, so that they do not enter the trainer's environment."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TRAINING = ["pytorch-ignite==0.5.5", "timm==1.0.31"]
"""Packages of ``bench/training.py``."""


def installed(packages: Sequence[str], *flags: str) -> str:
    """Return a folder with pinned ``packages``, installed at the first call.

    Args:
        packages: names with versions. Their dependencies must be listed too, or be in this environment.
        flags: flags of pip.
    """
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    cache = Path(os.environ.get("SLIPWAY_CACHE", caches / "slipway"), "bench")
    key = hashlib.sha256(" ".join([sys.implementation.cache_tag or "", *packages, *flags]).encode()).hexdigest()
    folder = cache / key[:16]
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=cache))
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(temporary)]
        subprocess.run([*install, *flags, *packages], check=True)
        temporary.rename(folder)
    return str(folder)


def environment(*folders: str | None) -> dict[str, str]:
    """Return environment variables of a contender's process: one thread, and the libraries in ``folders``."""
    paths = ":".join(filter(None, [os.environ.get("PYTHONPATH"), *folders]))
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": paths}
