"""Which schedulers can be asked for jobs: a new one adds a line here."""

from __future__ import annotations

import shutil
from typing import Dict, List, Optional

from jobgen.schedulers.pbs_queue import PbsQueue
from jobgen.schedulers.queue import Queue
from jobgen.schedulers.slurm_queue import SlurmQueue

QUEUES: Dict[str, Queue] = {queue.name: queue for queue in (SlurmQueue(), PbsQueue())}


def queues_here() -> List[Queue]:
    """Return those whose commands are on this machine: none, one, or, on some clusters, several."""
    return [queue for queue in QUEUES.values() if shutil.which(queue.command)]


def queue_named(scheduler: str) -> Optional[Queue]:
    """Return the one of that name; None if its commands are not on this machine, or there is none."""
    queue = QUEUES.get(scheduler)
    return queue if queue and shutil.which(queue.command) else None
