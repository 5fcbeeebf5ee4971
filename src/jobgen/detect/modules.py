"""Environment modules of container runtimes, PyTorch, Python, MPI, CUDA and ROCm."""

from __future__ import annotations

import re
from typing import Dict, List, Tuple

from jobgen.detect.ask import Asker
from jobgen.detect.parsing import is_plain

COMMAND = "module -t avail"
SCRIPT = f'echo "BEGIN MODULES"; {COMMAND} 2>&1'
"""A login shell defines `module` but may print other text first; `module` lists to standard error (module(1))."""
WANTED = {
    "apptainer": r"apptainer",
    "singularity": r"singularity(?:-?ce|pro)?",
    "torch": r"(?:py-)?(?:py)?torch(?:-(?:bundle|conda|gpu|amd|(?:cuda|rocm)[\d.]*))?",
    "python": r"(?:cray-)?python3?",
    "openmpi": r"open-?mpi",
    "cray-mpich": r"cray-mpich",
    "cuda": r"(?:cuda|cudatoolkit|cudacore)",
    "rocm": r"rocm",
}
"""Patterns of module names, without version and parent folders."""


def read_modules(asker: Asker) -> Dict[str, List[str]]:
    """Return the modules of each kind in WANTED, the default first, then the newest."""
    answer = asker.run("bash", "--login", "-c", SCRIPT, expected=False)
    if answer.error.startswith("no "):  # it hung; a machine without modules is not a failure
        asker.failed.append(answer)
    lines = answer.text.partition("BEGIN MODULES\n")[2].splitlines()
    found: Dict[str, List[Tuple[bool, Tuple[int, ...], str]]] = {kind: [] for kind in WANTED}
    for line in lines:
        name, *marks = line.strip().partition("(")
        if not is_plain(name) or name.endswith(("/", ":")):  # a module folder
            continue
        parts = name.split("/")
        for kind, pattern in WANTED.items():
            if any(re.fullmatch(pattern, part, flags=re.IGNORECASE) for part in parts[-2:]):
                is_default = "".join(marks).startswith("(") and re.search(r"default|\bD\b", "".join(marks)) is not None
                found[kind].append((is_default, _version(parts[-1]), name))
    return {kind: [name for *_, name in sorted(rows, reverse=True)] for kind, rows in found.items() if rows}


def loaded_schedulers(asker: Asker) -> List[str]:
    """Return the loaded modules of schedulers: `module purge` would remove the scheduler's commands."""
    names = asker.env.get("LOADEDMODULES", "").split(":")
    return [name for name in names if re.match(r"(?:.*/)?(?:slurm|pbs|openpbs|torque)(?:pro)?(?:/|$)", name.lower())]


def _version(text: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]{1,8}", text)[:4])
