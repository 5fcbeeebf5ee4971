"""What a session says as it opens: where it stands, and what it cannot see to."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipway.base.environment import World
from slipway.base.errors import warn
from slipway.capture.data_parallel import needs_warm_up
from slipway.checkpoint.header import Position
from slipway.checks.skipping import warn_of_skipping
from slipway.dist.adopt import under_horovod
from slipway.state.wrappers import replicas_in

log = logging.getLogger(__name__)


def announce(objects: Mapping[str, Mapping[str, Any]], *, start: Position, world: World, folder: Path) -> None:
    """Log where a session begins, and what may not be meant.

    Args:
        objects: those of the session, by kind and name.
        start: where it begins.
        world: the ranks.
        folder: of the run.
    """
    is_resumed = (start.step, start.epoch) > (0, 0)
    if is_resumed:
        log.info("resumed at step %d, after %d epoch(s)", start.step, start.epoch)
    log.info("%d rank(s), run folder %s", world.size, folder)
    if world.is_root and not is_resumed:
        _list_what_is_not_seen(has_scaler=bool(objects["scaler"]))
    models = objects["model"]
    if world.size > 1 and not under_horovod() and not any(map(replicas_in, models.values())):
        warn(
            log,
            "no-ddp-model",
            "no model is in DistributedDataParallel: unless the script averages gradients, each rank trains alone",
        )
    if world.is_root:
        warn_of_skipping(objects["optimizer"], objects["scaler"].values())
    for name, model in models.items():
        if needs_warm_up(model, world.size):
            log.info("%s: resuming is exact to the last bit with session.warm_up or find_unused_parameters", name)


def _list_what_is_not_seen(*, has_scaler: bool) -> None:
    """List what a session cannot restore, and cannot know of."""
    scaler = "" if has_scaler else "a GradScaler (scaler=), "
    log.info(
        "not restored, unless they are given: %saverages of weights (EMA), random generators, best values (extra=)",
        scaler,
    )
    log.info("not restored: local variables, such as sums (use session.mean), counters (session.step) and iterators")
