"""The queue of OpenPBS, PBS Professional and Torque: qstat and qdel."""

from __future__ import annotations

import re
from typing import List, Optional

from jobgen.errors import JobgenError
from jobgen.queues import JobId, Phase, Seen, ask

WAITING = "HQSTWU"
ENDED = "CFMX"
"""Torque's C, and F of a PBS that keeps a history, X of a task there; any other letter is a job at work (qstat(1B))."""
UNKNOWN = ("Unknown Job", "Job has finished")


class PbsQueue:
    """A server that qstat asks."""

    name = "pbs"
    command = "qstat"
    servers = True

    def look(self, job: JobId) -> List[Seen]:
        """Ask for the job, then for its history, then for an array of this number, whose name in PBS is ``12[]``.

        Torque has no history, and its ``-x`` means XML.
        """
        server = f".{job.server}" if job.server else ""
        one = f"{job.number}[{job.task}]{server}" if job.task else f"{job.number}{server}"
        tries = [["-f", one], ["-x", "-f", one]]
        if not job.task:
            array = f"{job.number}[]{server}"
            tries += [["-t", "-f", array], ["-x", "-t", "-f", array]]
        for arguments in tries:
            code, out, error = ask(["qstat", *arguments])
            if code and "-x" not in arguments and not any(text.lower() in error.lower() for text in UNKNOWN):
                raise JobgenError("scheduler-silent", f"PBS does not answer for job {one}: {error}.")
            if seen := [_of_qstat(text) for text in re.split(r"(?m)^Job Id: ", out)[1:]]:
                return seen
        return []

    def cancel(self, job: JobId, seen: List[Seen]) -> List[str]:  # noqa: ARG002 -- of the protocol
        """End it, by the server's own name for it, by SIGTERM to the script, which passes it on."""
        return ["qdel", seen[0].job_id]

    def largest_array(self) -> Optional[int]:
        """Return the server's max_array_size, in Torque max_job_array_size."""
        _, out, _ = ask(["qstat", "-B", "-f"])
        found = re.search(r"(?m)^ +max_(?:job_)?array_size = ([0-9]+)$", out)
        return int(found[1]) if found else None


def _of_qstat(text: str) -> Seen:
    job_id, _, rest = text.replace("\n\t", "").partition("\n")  # long lines go on behind a tab
    fields = dict(re.findall(r"(?m)^ +(\S+) = (.*)$", rest))
    state = fields.get("job_state", "?")
    phase: Phase = "waiting" if state in WAITING else "ended" if state in ENDED else "running"
    limit = fields.get("Resource_List.walltime")
    took = fields.get("resources_used.walltime", "?") + (f" of {limit}" if limit else "")
    code = fields.get("Exit_status", fields.get("exit_status", "?"))
    hosts = ", ".join(dict.fromkeys(part.split("/")[0] for part in fields.get("exec_host", "?").split("+")))
    about = {
        "waiting": fields.get("comment", "no reason given"),
        "running": f"on {hosts} for {took}",
        "ended": f"after {took} on {hosts}, exit code {code}",
    }[phase]
    job_id = job_id.strip()
    if "[]" in job_id:
        about = f"array of {fields.get('array_indices_submitted', '?')}; {fields.get('array_state_count', '').strip()}"
    index = re.search(r"\[(\d+)\]", job_id)
    log = fields.get("Output_Path", "").partition(":")[2]  # HOST:PATH
    log = log.replace("^array_index^", index[1] if index else "^array_index^")
    folder = re.search(r"PBS_O_WORKDIR=([^,]*)", fields.get("Variable_List", ""))
    failed = phase == "ended" and code != "0"
    return Seen(job_id, state, phase, about, log, folder[1] if folder else "", failed)


QUEUE = PbsQueue()
