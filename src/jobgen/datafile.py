"""What SLIPWAY_DATA names, and whether a job can use it: asked of the library, which each job asks too."""

from __future__ import annotations

import os
import subprocess
from typing import Mapping, Optional

from jobgen.data import data_folder

LIMIT = 60
"""Seconds: a tar that is compressed, and has its first file far behind, is read up to there."""
ASK = 'source "$1" && inspect_data && printf %s "$data_refusal"'


def data_refusal(settings: Mapping[str, Optional[str]], *, mounts_squashfs: bool) -> str:
    """Return why the job cannot use the data that ``settings`` name, in one line; "" if it can.

    Also where this machine has no Bash to ask: then the job says it.

    Args:
        settings: of the job.
        mounts_squashfs: whether its container runtime mounts an image as a folder.
    """
    names = ("SLIPWAY_DATA", "SLIPWAY_STAGE", "SLIPWAY_SCRIPT", "USE_CONTAINER")
    environment = {**os.environ, **{name: settings.get(name) or "" for name in names}}
    environment["mounts_squashfs"] = str(int(mounts_squashfs))
    words = ["bash", "-c", ASK, "-", str(data_folder("jobscripts", "lib") / "data.bash")]
    try:
        done = subprocess.run(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
