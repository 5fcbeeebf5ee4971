"""How many CPU threads a rank computes with, and why."""

from __future__ import annotations

import logging
import os

import torch

from slipway.base.environment import Environment
from slipway.dist.collectives import count_alike
from slipway.dist.communicator import Communicator

log = logging.getLogger(__name__)


def set_threads(requested: int | None, comm: Communicator, environment: Environment) -> None:
    """Let this rank compute with ``requested`` threads, or, for None, with what its launcher gave it.

    That is OMP_NUM_THREADS where it is set, else an even share of the CPUs that this rank may use, with as many ranks
    on this node as may use just the same ones.
    """
    cpus = sorted(os.sched_getaffinity(0))
    # Every rank asks, whatever its own variables say: launchers do not hand the same ones to all nodes.
    sharers = count_alike(comm, f"{os.uname().nodename} {cpus}")
    if requested:
        count, reason = requested, "--threads"
    elif environment.threads:
        count, reason = environment.threads, "OMP_NUM_THREADS"
    else:
        count, reason = max(1, len(cpus) // sharers), f"{len(cpus)} CPUs, shared by {sharers} rank(s)"
    torch.set_num_threads(count)
    log.info("%d CPU thread%s a rank: %s", count, "s" if count > 1 else "", reason)
