"""profile_rank.py WORD...: run ``python WORD...`` as this rank under NVIDIA's Nsight Systems.

Writes RUN_DIR/profile/rankR.attemptA.nsys-rep. nsys replaces this process, and Python is its child.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Variables in which launchers pass a rank's number."""
PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal to get when the parent process dies."""

if "TORCHELASTIC_RUN_ID" in os.environ:  # a rank must end when torchrun dies, and nsys is now torchrun's child
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
os.environ.pop("SLIPWAY_RANK_PID", None)  # set by sitecustomize.py for this process; the rank is another one
folder = Path(os.environ["RUN_DIR"], "profile")
folder.mkdir(exist_ok=True)
rank = next((os.environ[name] for name in RANKS if name in os.environ), "0")
report = f"{folder}/rank{rank}.attempt{os.environ['TRAINER_ATTEMPT']}".replace("%", "%%")  # as nsys expands %h
words = ["nsys", "profile", "--trace=cuda,nvtx,osrt", "--sample=none", "--wait=primary", f"--output={report}"]
os.execvp("nsys", [*words, sys.executable, *sys.argv[1:]])  # noqa: S606 -- in place of this process
