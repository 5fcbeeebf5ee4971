"""Slurm's queue: scontrol while the controller remembers a job, then accounting where the site has it."""

from __future__ import annotations

import re
from typing import Dict, List, Optional

from jobgen.errors import JobgenError
from jobgen.queues import JobId, Phase, Seen, ask

WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
RUNNING = {"RUNNING", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}
"""Any other state is an end (squeue(1), JOB STATE CODES)."""
FIELDS = ["JobID", "State", "ExitCode", "NodeList", "Elapsed", "Timelimit", "WorkDir"]
"""What sacct is asked for; it says where a log is since 23.11 only."""


class SlurmQueue:
    """Slurm 20.11 or later, with or without slurmdbd."""

    name = "slurm"
    command = "scontrol"
    servers = False

    def look(self, job: JobId) -> List[Seen]:
        """Ask the controller, which forgets a job some minutes after its end (MinJobAge), and then sacct."""
        if job.server:  # the same number here is another job
            return []
        # else a long list of an array's tasks ends in "..."
        code, out, error = ask(["scontrol", "--oneliner", "show", "job", str(job)], SLURM_BITSTR_LEN="0")
        if code == 0:
            return [_of_scontrol(line) for line in out.splitlines() if line.startswith("JobId=")]
        if "Invalid job id" not in error and "not found" not in out:  # the latter of a task, on standard output
            raise JobgenError("scheduler-silent", f"Slurm does not answer for job {job}: {error}.")
        options = ["--allocations", "--noheader", "--parsable2", f"--format={','.join(FIELDS)}"]
        code, out, _ = ask(["sacct", f"--jobs={job}", *options])
        return [_of_sacct(line) for line in out.splitlines() if line] if code == 0 else []  # no accounting here

    def cancel(self, job: JobId, seen: List[Seen]) -> List[str]:  # noqa: ARG002 -- of the protocol
        """End it by SIGTERM to all its processes: the ranks save, the script waits for them."""
        return ["scancel", str(job)]

    def largest_array(self) -> Optional[int]:
        """Return MaxArraySize."""
        _, out, _ = ask(["scontrol", "show", "config"])
        found = re.search(r"(?m)^MaxArraySize *= *([0-9]+)$", out)
        return int(found[1]) if found else None


def _of_scontrol(line: str) -> Seen:
    fields = dict(re.findall(r"(?:^| )([A-Za-z/:]+)=(.*?)(?= [A-Za-z/:]+=|$)", line))
    task = f"{fields['ArrayJobId']}_{fields['ArrayTaskId']}" if "ArrayTaskId" in fields else fields["JobId"]
    return _seen(task, fields["JobState"], fields, log=fields.get("StdOut", ""))


def _of_sacct(line: str) -> Seen:
    fields = dict(zip(FIELDS, line.split("|", len(FIELDS) - 1)))
    names = {"RunTime": fields["Elapsed"], "TimeLimit": fields["Timelimit"], **fields}
    log = f"{fields['WorkDir']}/slurm-{fields['JobID']}.out"  # unless --output says another
    return _seen(fields["JobID"], fields["State"].split(" ")[0], names, log=log)  # "CANCELLED by 1000"


def _seen(job_id: str, state: str, fields: Dict[str, str], *, log: str) -> Seen:
    phase: Phase = "waiting" if state in WAITING else "running" if state in RUNNING else "ended"
    took = f"{fields.get('RunTime', '?')} of {fields.get('TimeLimit', '?')}"
    about = {
        "waiting": f"because of {fields.get('Reason', '?')}",
        "running": f"on {fields.get('NodeList', '?')} for {took}",
        "ended": f"after {took} on {fields.get('NodeList', '?')}, exit code {fields.get('ExitCode', '?')}",
    }[phase]
    if fields.get("Restarts", "0") != "0":
        about += f", {fields['Restarts']} restart(s)"
    failed = phase == "ended" and state != "COMPLETED"
    return Seen(job_id, state, phase, about, log, fields.get("WorkDir", ""), failed)


QUEUE = SlurmQueue()
