"""The self-test: what ``--self-test`` does in the place of training, on the very ranks that a job has.

Each rank measures itself and tells in one line what it found; rank 0 compares all of them with each other and with the
plan, and says in one line what is wrong. Without a fault the run is done, like one that trained.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys

from slipway.communicator import Communicator
from slipway.communicator.sharing import gather_json, on_root
from trainer.config import Settings
from trainer.doctor.measure import Facts, measure
from trainer.doctor.verdict import faults
from trainer.errors import ConfigError
from trainer.runfolder import RunFolder, Status
from trainer.strategies import Strategy, resolved
from trainer.threads import set_threads

log = logging.getLogger(__name__)


def examine(settings: Settings, ranks: Communicator, strategy: Strategy, folder: RunFolder) -> Status:
    """Test the ranks and leave the verdict in ``folder``.

    Raises:
        ConfigError: on every rank, saying all that is wrong.
    """
    set_threads(settings.launch.threads, ranks)
    on_root(ranks, lambda: folder.record(settings, ranks.world, resolved(settings.launch, ranks, strategy)))
    facts = measure(settings.launch, ranks)
    sys.stdout.write(f"{facts}\n")  # every rank speaks here, a line at a time: print may write its end by itself
    sys.stdout.flush()
    all_facts = [Facts(**found) for found in gather_json(ranks, dataclasses.asdict(facts))]
    status = Status(attempt=folder.attempt, state="done")
    on_root(ranks, lambda: _conclude(all_facts, folder, status))
    log.info("self-test: %d ranks on %d nodes, nothing wrong", len(all_facts), len({facts.host for facts in all_facts}))
    return status


def _conclude(ranks: list[Facts], folder: RunFolder, status: Status) -> None:
    if found := faults(ranks, ranks_per_node=os.environ.get("TRAINER_RANKS_PER_NODE", "")):
        raise ConfigError(f"self-test: {'; '.join(found)}")
    folder.conclude(status)
