"""The selftest: what ``--selftest`` does in the place of training, on the very ranks that a job has.

Each rank measures itself and tells in one line what it found; rank 0 compares all of them with each other and with the
plan, and says in one line what is wrong. Without a fault the run is done, like one that trained.
"""

from __future__ import annotations

import dataclasses
import logging
import sys

import torch

from slipway.base.environment import Environment
from slipway.base.stop import Reason
from slipway.dist.collectives import all_gather_json
from slipway.dist.communicator import Communicator
from slipway.run.attempt import open_folder
from slipway.run.run_folder import RunFolder
from trainer.config.errors import ConfigError
from trainer.config.settings import Settings
from trainer.engine.provenance import begin
from trainer.parallel.strategy import Strategy, resolved
from trainer.selftest.measure import Facts, measure
from trainer.selftest.verdict import faults

log = logging.getLogger(__name__)


def run_selftest(
    settings: Settings, comm: Communicator, strategy: Strategy, folder: RunFolder, environment: Environment
) -> Reason:
    """Test the ranks and leave the verdict in ``folder``.

    Raises:
        RunError: on every rank, if ``folder`` cannot be had, or holds a run, whose records it would replace.
        ConfigError: on every rank, saying all that is wrong.
    """
    launched = resolved(settings.launch, comm, strategy, [])
    with open_folder(folder, environment, comm, may_continue=False) as ownership:
        attempt = ownership.make(lambda owned: begin(owned, settings, comm.world, launched, step=0))
        facts = measure(settings.launch, comm)
        sys.stdout.write(f"{facts}\n")  # every rank speaks here, a line at a time: print may write its end by itself
        sys.stdout.flush()
        gathered = all_gather_json(comm, dataclasses.asdict(facts), device=torch.device("cpu"))
        ranks = [Facts(**found) for found in gathered]
        if found := faults(ranks, ranks_per_node=environment.planned_ranks_per_node):
            error = ConfigError("selftest-failed", f"selftest: {'; '.join(found)}")
            error.raised_on_all_ranks = True
            raise error
        attempt.run(lambda begun: begun.conclude(Reason.NONE, step=0))
    log.info("selftest: %d rank(s) on %d node(s), nothing wrong", len(ranks), len({facts.host for facts in ranks}))
    return Reason.NONE
