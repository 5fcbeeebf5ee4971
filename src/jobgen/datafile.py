"""What SLIPWAY_DATA names, and whether a job can use it: asked of the library, which each job asks too."""

from __future__ import annotations

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
    names = ("SLIPWAY_DATA", "SLIPWAY_STAGE", "SLIPWAY_SCRIPT", "SLIPWAY_CONFIG", "USE_CONTAINER")
    values = [f"{name}={settings.get(name) or ''}" for name in names]
    program = ["bash", "-c", ASK, "-", str(data_folder("jobscripts", "lib") / "data.bash")]
    words = ["env", *values, f"mounts_squashfs={int(mounts_squashfs)}", *program]
    try:
        done = subprocess.run(
            words,
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
