"""profile_rank.py WORD...: run ``python WORD...`` as this rank under NVIDIA's Nsight Systems.

Leaves profile/rankR.attemptA.nsys-rep in RUN_DIR. nsys takes the place of this process, and Python is its child.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Variables that number a rank, by its launcher."""
PR_SET_PDEATHSIG = 1
"""Of prctl(2)."""

if "TORCHELASTIC_RUN_ID" in os.environ:  # a rank ends when its torchrun dies, which nsys alone sees now
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
os.environ.pop("SLIPWAY_RANK_PID", None)  # by sitecustomize.py; the rank is another process
folder = Path(os.environ["RUN_DIR"], "profile")
folder.mkdir(exist_ok=True)
rank = next((os.environ[name] for name in RANKS if name in os.environ), "0")
report = f"{folder}/rank{rank}.attempt{os.environ['TRAINER_ATTEMPT']}".replace("%", "%%")  # as nsys expands %h
words = ["nsys", "profile", "--trace=cuda,nvtx,osrt", "--sample=none", "--wait=primary", f"--output={report}"]
os.execvp("nsys", [*words, sys.executable, *sys.argv[1:]])  # noqa: S606 -- in place of this process
