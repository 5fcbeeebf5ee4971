"""``--selftest``: test a job's ranks instead of training.

Each rank measures itself and prints one line. Rank 0 compares the ranks with each other and with the plan, and reports
all faults in a one-line error. Without a fault, the run is done, as after training.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import time

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
from trainer.selftest.measure import Facts, measure, time_forward
from trainer.selftest.verdict import faults, slow_ranks

log = logging.getLogger(__name__)

REPEATS = 4
"""How often the ranks' speed is measured again while one is slow: only a slowness that lasts is a fault."""


def run_selftest(
    settings: Settings, comm: Communicator, strategy: Strategy, folder: RunFolder, environment: Environment
) -> Reason:
    """Test the ranks and write the verdict to ``folder``.

    Raises:
        RunError: on every rank, if ``folder`` is unavailable, or holds a run whose records the selftest would replace.
        ConfigError: on every rank, listing all faults.
    """
    launched = resolved(settings.launch, comm, strategy, [])
    with open_folder(folder, environment, comm, may_continue=False) as ownership:
        attempt = ownership.make(lambda owned: begin(owned, settings, comm.world, launched, step=0))
        facts = measure(settings.launch.dist_backend, comm)
        sys.stdout.write(f"{facts}\n")  # all ranks write here: print might write the line end separately
        sys.stdout.flush()
        ranks = _gather(comm, facts)
        for _ in range(REPEATS):
            if not (slow := slow_ranks(ranks)):
                break
            log.info("selftest: %s Measuring again.", slow[0])
            time.sleep(1)
            facts = dataclasses.replace(facts, forward_ms=min(facts.forward_ms, time_forward(comm.device)))
            ranks = _gather(comm, facts)
        if found := faults(ranks, ranks_per_node=environment.planned_ranks_per_node):
            raise ConfigError("selftest-failed", f"selftest: {'; '.join(found)}", raised_on_all_ranks=True)
        attempt.run(lambda begun: begun.conclude(Reason.NONE, step=0))
    log.info("selftest: %d rank(s) on %d node(s), nothing wrong", len(ranks), len({facts.host for facts in ranks}))
    return Reason.NONE


def _gather(comm: Communicator, facts: Facts) -> list[Facts]:
    return [Facts(**found) for found in all_gather_json(comm, dataclasses.asdict(facts), device=torch.device("cpu"))]
