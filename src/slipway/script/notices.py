"""Log messages of an opening session: its position, and the state that it cannot restore."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway.base.environment import World
from slipway.base.errors import warn
from slipway.checkpoint.header import Position
from slipway.checks.skipped_steps import warn_of_skipping
from slipway.dist.existing_group import under_horovod
from slipway.state.wrappers import averages_gradients

log = logging.getLogger(__name__)


def announce(objects: Mapping[str, Mapping[str, Any]], *, start: Position, world: World, folder: Path) -> None:
    """Log where a session begins, and warn of likely mistakes.

    Args:
        objects: the session's objects, by kind and name.
        start: the position at which the session begins.
        world: rank and world size.
        folder: the run folder.
    """
    is_resumed = (start.step, start.epoch) > (0, 0)
    if is_resumed:
        log.info("resumed at step %d, after %d epoch(s)", start.step, start.epoch)
    log.info("%d rank(s), run folder %s", world.size, folder)
    if world.is_root and not is_resumed:
        _log_unrestored_state(has_scaler=bool(objects["scaler"]))
    models = objects["model"]
    if world.size > 1 and not under_horovod() and not any(map(averages_gradients, models.values())):
        warn(
            log,
            "no-ddp-model",
            "no model is in DistributedDataParallel: unless the script averages gradients, each rank trains alone",
        )
    if world.is_root:
        warn_of_skipping(objects["optimizer"], objects["scaler"].values())


def _log_unrestored_state(*, has_scaler: bool) -> None:
    """Log the kinds of state that a session cannot restore and cannot detect."""
    scaler = "" if has_scaler else "a GradScaler (scaler=), "
    log.info(
        "not restored unless passed: %saveraged weights (EMA), random generators, best values (extra=)",
        scaler,
    )
    log.info("not restored: local variables, such as sums (use session.mean), counters (session.step) and iterators")
