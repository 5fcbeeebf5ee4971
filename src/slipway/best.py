"""The best weights of a run, loaded into its models once it has trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from slipway.checkpoint.components import Stateful, restore
from slipway.checkpoint.folder import Checkpoint
from slipway.checkpoint.store import read_best
from slipway.communicator import Communicator
from slipway.communicator.collectives import run_on_root
from slipway.errors import SessionError
from slipway.layout import BEST


def load_best(models: Mapping[str, Stateful], checkpoints: Path, comm: Communicator) -> float:
    """Load the weights of the best of ``checkpoints`` into ``models``; return its metric. All ranks must call this.

    Raises:
        SessionError: on every rank, if no metric was recorded to choose it by.
        DamagedBestError: on every rank, if it is damaged; it names the next best one.
    """

    def find() -> Checkpoint:
        if not (checkpoints / BEST).exists():
            raise SessionError(
                "no-best-checkpoint",
                f"{checkpoints} has no best one: Session(best=NAME), and session.metrics(NAME=...) in each epoch.",
            )
        return read_best(checkpoints)

    restored = restore(models, run_on_root(comm, find), comm)
    assert restored
    assert restored.header.metric
    return restored.header.metric.value
