"""Detection of a single machine without a scheduler."""

from __future__ import annotations

import platform
import re
import shutil

from jobgen.base.errors import JobgenError
from jobgen.detect.ask import Asker
from jobgen.detect.draft import Draft
from jobgen.detect.parsing import is_plain

OTHERS = {"bsub": "LSF", "qconf": "Grid Engine", "condor_submit": "HTCondor", "flux": "Flux", "oarsub": "OAR"}
"""Commands of schedulers that jobgen does not support."""


def draft_single_machine(draft: Draft, asker: Asker) -> None:
    """Detect the fields of this machine.

    Raises:
        JobgenError: if it has a scheduler that jobgen does not support.
    """
    for command, scheduler in OTHERS.items():
        if shutil.which(command):
            raise JobgenError(
                "unknown-scheduler",
                f"this cluster uses {scheduler} ({command}), but jobgen supports only Slurm, PBS and single machines: "
                "see docs/contributing/adding.md to add a scheduler.",
            )
    host = platform.node().partition(".")[0]
    draft.add("name", host if is_plain(host) else "machine", "host name")
    draft.add("scheduler", "local", "neither sbatch nor qsub is on this machine")
    draft.add("resume", "none", "without a scheduler, runs cannot be requeued")
    nvidia = re.findall(r"(?m)^GPU [0-9]+: (.*?) \(UUID", asker.run("nvidia-smi", "-L", expected=False).text)
    amd = re.findall(r"(?m)^GPU\[([0-9]+)\]", asker.run("rocm-smi", "--showid", expected=False).text)
    if nvidia:
        draft.add("accelerator", "nvidia", f"nvidia-smi -L: {nvidia[0]}")
    elif amd:
        draft.add("accelerator", "amd", "rocm-smi --showid")
    else:
        draft.add("accelerator", "none", "neither nvidia-smi nor rocm-smi lists a GPU")
    gpus = len(nvidia) or len(set(amd)) or 1
    counted = "nvidia-smi -L" if nvidia else "rocm-smi --showid" if amd else "no GPUs: number of ranks"
    draft.add("gpus_per_node", gpus, counted)
    cores = re.findall(r"(?m)^[0-9]+,[0-9]+", asker.run("lscpu", "--parse=CORE,SOCKET", expected=False).text)
    if cores:
        draft.add("cpus_per_gpu", max(1, len(set(cores)) // gpus), f"lscpu: {len(set(cores))} cores")
    else:
        draft.add_question("cpus_per_gpu", "How many CPU cores per GPU?", candidate=4)
