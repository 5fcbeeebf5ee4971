"""Slurm's commands on a machine without Slurm: each job that is submitted is a process group of this machine."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

SBATCH = """#!/bin/bash
# The first FREE jobs start at once, the others when the file `go` exists. A job's number is its process group's.
set -euo pipefail
exec 9>{folder}/lock
flock 9
number=$(find {folder}/jobs -type f | wc --lines)
cp -- "${{!#}}" "{folder}/scripts/$number"
waits="until [ $number -lt {free} ] || [ -e {folder}/go ]; do sleep 0.1; done; exec bash {folder}/scripts/$number"
setsid bash -c "$waits" >>{folder}/log 2>&1 </dev/null 9>&- &
echo "$number" >{folder}/jobs/$!
echo "Submitted batch job $!"
"""
SQUEUE = """#!/bin/bash
# Prints the numbers of the jobs called --name=NAME that wait or run.
set -euo pipefail
for word; do
    [[ $word != --name=* ]] || name=${{word#*=}}
done
for job in {folder}/jobs/*; do
    read -r number <"$job"
    grep --quiet --line-regexp "#SBATCH --job-name=$name" "{folder}/scripts/$number" || continue
    [ -z "$(cat "/proc/${{job##*/}}/cmdline" 2>/dev/null | tr '\\0' x)" ] || echo "${{job##*/}}"
done
"""
SCANCEL = """#!/bin/bash
for job; do
    kill -TERM -- "-$job" || :
done
"""


class SlurmHere:
    """A folder with sbatch, squeue and scancel; ``path`` is a PATH that begins with it."""

    def __init__(self, folder: Path, *, free: int = 99) -> None:
        """Of the jobs, only the first ``free`` start before ``go`` is called."""
        self.folder = folder
        for name in ("bin", "jobs", "scripts"):
            (folder / name).mkdir(parents=True)
        for name, text in {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL}.items():
            program = folder / "bin" / name
            program.write_text(text.format(folder=folder, free=free), encoding="utf-8")
            program.chmod(0o755)
        self.path = f"{folder / 'bin'}:{os.environ['PATH']}"

    def go(self) -> None:
        """Start the jobs that wait."""
        (self.folder / "go").touch()

    @property
    def submitted(self) -> list[int]:
        """Return the numbers of all jobs."""
        return [int(job.name) for job in (self.folder / "jobs").iterdir()]

    @property
    def running(self) -> list[int]:
        """Return the jobs of which a process is left."""
        rows = subprocess.check_output(["ps", "-eo", "pgid=,stat="], text=True).splitlines()
        groups = {int(row.split()[0]) for row in rows if "Z" not in row.split()[1]}
        return [job for job in self.submitted if job in groups]

    def close(self) -> None:
        """End the jobs that a failed test has left."""
        for job in self.running:
            with suppress(ProcessLookupError):
                os.killpg(job, signal.SIGKILL)
