"""The queue of OpenPBS, PBS Professional and Torque: qstat and qdel."""

from __future__ import annotations

import re
from typing import List

from jobgen.errors import JobgenError
from jobgen.schedulers.queue import Phase, Seen, ask

WAITING = "HQSTWU"
ENDED = "CFMX"
"""Torque's C, and F of a PBS that keeps a history; any other letter is a job at work (qstat(1B))."""
UNKNOWN = ("Unknown Job", "Job has finished")


class PbsQueue:
    """A server that qstat asks."""

    name = "pbs"
    command = "qstat"
    mark = "#PBS"

    def look(self, job_id: str) -> List[Seen]:
        """Ask for the job, and where the server says that it has finished, for its history.

        Torque has none, and its ``-x`` means XML.
        """
        code, out, error = ask(["qstat", "-f", job_id])
        if code and any(text.lower() in error.lower() for text in UNKNOWN):
            _, out, _ = ask(["qstat", "-x", "-f", job_id])
        elif code:
            raise JobgenError(f"PBS does not answer for job {job_id}: {error}.")
        return [_of_qstat(text) for text in re.split(r"(?m)^Job Id: ", out)[1:]]

    def cancel(self, job_id: str) -> List[str]:
        """End it by SIGTERM to the script, which passes it on."""
        return ["qdel", job_id]


def _of_qstat(text: str) -> Seen:
    job_id, _, rest = text.replace("\n\t", "").partition("\n")  # long lines go on behind a tab
    fields = dict(re.findall(r"(?m)^ +(\S+) = (.*)$", rest))
    state = fields.get("job_state", "?")
    phase: Phase = "waiting" if state in WAITING else "ended" if state in ENDED else "running"
    took = f"{fields.get('resources_used.walltime', '?')} of {fields.get('Resource_List.walltime', '?')}"
    hosts = ", ".join(dict.fromkeys(part.split("/")[0] for part in fields.get("exec_host", "?").split("+")))
    about = {
        "waiting": fields.get("comment", "no reason given"),
        "running": f"on {hosts} for {took}",
        "ended": f"after {took} on {hosts}, exit code {fields.get('Exit_status', fields.get('exit_status', '?'))}",
    }[phase]
    log = fields.get("Output_Path", "").partition(":")[2]  # HOST:PATH
    folder = re.search(r"PBS_O_WORKDIR=([^,]*)", fields.get("Variable_List", ""))
    return Seen(job_id.strip(), state, phase, about, log, folder[1] if folder else "")
