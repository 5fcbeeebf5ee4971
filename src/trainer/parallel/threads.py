"""Number of CPU threads that a rank computes with."""

from __future__ import annotations

import logging
import os

import torch

from slipway.dist.collectives import count_equal
from slipway.dist.communicator import Communicator

log = logging.getLogger(__name__)


def set_threads(requested: int | None, comm: Communicator, *, omp_threads: int | None) -> None:
    """Set this rank's CPU threads to ``requested``, or, for None, derive the number; all ranks must call this.

    The derived number is ``omp_threads``, the value of OMP_NUM_THREADS, if it is set. Otherwise it is an even share of
    the CPUs that this rank may use, divided by the number of ranks on this node with the same CPUs.
    """
    cpus = sorted(os.sched_getaffinity(0))
    # Each rank takes part, whatever its own variables: launchers do not set the same ones on all nodes.
    sharers = count_equal(comm, f"{os.uname().nodename} {cpus}")
    if requested:
        count, reason = requested, "--threads"
    elif omp_threads:
        count, reason = omp_threads, "OMP_NUM_THREADS"
    else:
        count, reason = max(1, len(cpus) // sharers), f"{len(cpus)} CPUs, shared by {sharers} rank(s)"
    torch.set_num_threads(count)
    log.info("%d CPU thread%s per rank: %s", count, "s" if count > 1 else "", reason)
