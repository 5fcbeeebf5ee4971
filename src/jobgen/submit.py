"""``jobgen submit``: see what the login node can see, then hand the script to the scheduler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List

from jobgen.errors import JobgenError
from jobgen.files import Script
from jobgen.schedulers import scheduler_of


def submit(script: Script, arguments: List[str], *, dry_run: bool, test_only: bool) -> int:
    """Submit ``script`` with ``arguments`` for what it trains; return the scheduler's exit code.

    The job's number is the last line of standard output; all prose goes to standard error.

    Raises:
        JobgenError: if the job could not start as things are.
    """
    _check(script)
    scheduler = scheduler_of(script.job)
    if dry_run:
        sys.stdout.write(script.text)
        words = scheduler.submission("SCRIPT", arguments)
        print(f"jobgen: would submit this with: {shlex.join(words)}", file=sys.stderr)
        return 0
    if test_only and script.job.site.scheduler != "slurm":
        raise JobgenError("--test-only asks Slurm; PBS has no such question: look with --dry-run.")
    with tempfile.TemporaryDirectory(prefix="jobgen-") as folder:
        path = Path(folder, script.job.spec.name + scheduler.suffix)  # the scheduler copies it, and keeps the name
        script.write(path)
        words = scheduler.submission(str(path), arguments)
        if not shutil.which(words[0]):
            raise JobgenError(f"no {words[0]} on this machine: submit on a login node, or look with --dry-run.")
        done = subprocess.run([words[0], "--test-only", *words[1:]] if test_only else words, check=False)
    return done.returncode


def _check(script: Script) -> None:
    """Look at what the script will look at on the head node, for a mistake should not wait in a queue."""
    site, spec = script.job.site, script.job.spec
    if site.scheduler == "local":
        raise JobgenError(f"site {site.name} has no scheduler: run the script that `jobgen render` writes.")
    default = "0" if site.container == "none" else "1"
    if os.environ.get("USE_CONTAINER", default) == "1":
        _need(
            "IMAGE",
            os.environ.get("IMAGE", "slipway.sif"),
            "`jobgen submit image_build` makes it, or set USE_CONTAINER=0",
        )
    else:
        venv = os.environ.get("VENV", ".venv")
        _need("VENV", f"{venv}/bin/python", "`jobgen submit venv_build` makes it, or set USE_CONTAINER=1")
    if foreign := os.environ.get("TRAIN_SCRIPT"):
        _need("TRAIN_SCRIPT", foreign, "correct it")
    else:
        _need("CONFIG", os.environ.get("CONFIG", spec.config), "see configs/")
    if data := os.environ.get("DATA"):
        _need("DATA", data, "correct it")


def _need(name: str, path: str, remedy: str) -> None:
    if not os.access(path, os.R_OK):
        raise JobgenError(f"{name}: {path} is missing or cannot be read from here: {remedy}.")
