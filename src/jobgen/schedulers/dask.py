"""Dask client: a script, started manually, that requests nodes from the site's scheduler with Dask-Jobqueue.

The script contains the request for a node as JSON, which ``trainer.launch.dask`` reads: the directives of a one-node
job script at the site.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Dict, List, Tuple

import msgspec

from jobgen.base.job import Job
from jobgen.base.shell import require_one_line
from jobgen.schedulers import Scheduler, scheduler_of

IDENTITY = """\
job_id=$(date +%Y%m%d-%H%M%S)-${HOSTNAME%%.*}-$$
[[ ${SLIPWAY_CLIENT:-} != *-$$ ]] || job_id=$SLIPWAY_CLIENT # this process, after a time limit
submit_folder=$PWD"""
REQUEST = """\
# What a node is asked for by: arguments of Dask-Jobqueue, and directives of the scheduler.
node_request() {
    cat <<'END_OF_REQUEST'
@
END_OF_REQUEST
}"""


class DaskClient(Scheduler):
    """Client of Dask-Jobqueue 0.9 or later."""

    name = "dask"
    suffix = ".sh"
    submit = "bash"
    launcher = "dask"
    identity = IDENTITY
    header = "dask_header.txt"
    has_queue = False
    resumes: ClassVar[Dict[str, str]] = {"restart": "which gives its nodes back and asks for new ones"}

    def site_lines(self, job: Job) -> List[Tuple[str, str]]:
        """Return values that no scheduler provides on a node."""
        return [
            (f"directives_gpus={job.gpus_per_node}", "of a node, as asked for below"),
            (f"directives_cpus={job.cpus_per_node}", "cores of a node"),
            (f"save_seconds={job.spec.save_seconds}", "kept for the last save before the time limit"),
            (f"job_variables={scheduler_of(job.site.scheduler).job_variables}", "of a job that this may run in"),
        ]

    def site_text(self, job: Job) -> str:
        """Return the Bash function that prints the request."""
        text = json.dumps(request(job), indent=4, ensure_ascii=False)
        return REQUEST.replace("@", "\n".join(require_one_line(line) for line in text.splitlines()))


def request(job: Job) -> Dict[str, Any]:
    """Return the JSON object that ``trainer.launch.dask.request`` reads."""
    giver, site = scheduler_of(job.site.scheduler), job.site
    spec = msgspec.structs.replace(job.spec, nodes=1)
    worker = msgspec.structs.replace(job, spec=spec, per_rank=False, options={**job.options, **giver.dask_options})
    directives = [line.split(" ", 1)[1] for line, _ in giver.directives(worker)]
    modules = [*(["module purge"] if site.purge_modules else []), *(f"module load {name}" for name in site.modules)]
    return {
        "cluster": giver.dask_cluster,
        "directives": directives,
        "prologue": modules if site.modules else [],
        "interface": site.interface,
        "seconds": job.spec.minutes * 60,
        "find": list(giver.dask_find),
        "cancel": list(giver.dask_cancel),
    }


SCHEDULER = DaskClient()
