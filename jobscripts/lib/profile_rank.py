"""profile_rank.py WORD...: run ``python WORD...`` as this rank under NVIDIA's Nsight Systems.

Leaves profile/rankR.nsys-rep in RUN_DIR, of a later attempt in place of that of an earlier one. Ends with the exit code
of the program; nsys hands signals on to it.
"""

import os
import sys
from pathlib import Path

NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Variables that number a rank, by its launcher."""

folder = Path(os.environ["RUN_DIR"], "profile")
folder.mkdir(exist_ok=True)
rank = next((os.environ[name] for name in NAMES if name in os.environ), "0")
words = ["nsys", "profile", "--trace=cuda,nvtx,osrt", "--force-overwrite=true", f"--output={folder}/rank{rank}"]
os.execvp("nsys", [*words, sys.executable, *sys.argv[1:]])  # noqa: S606 -- in place of this process
