"""Libraries of others, in folders of their own: nothing of them enters the environment of the trainer."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TRAINING = ["pytorch-ignite==0.5.5", "timm==1.0.31"]
"""Those of ``bench/training.py``."""


def installed(packages: Sequence[str], *flags: str) -> str:
    """Return a folder with ``packages``, which are pinned and installed at the first call.

    Args:
        packages: with versions; what they depend on must be named too, or be in this environment.
        flags: of pip.
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
    """Return the variables of a contender's process: one thread, and the libraries in ``folders``."""
    paths = ":".join(filter(None, [os.environ.get("PYTHONPATH"), *folders]))
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": paths}
