"""What a run folder says of how the trainer was started."""

from __future__ import annotations

from collections.abc import Mapping

import tomli_w

from slipway.base.environment import World
from slipway.run.attempt import Attempt, Ownership
from slipway.run.recorder import provenance
from trainer.config.settings import Config, experiment


def begin(
    owned: Ownership,
    config: Config,
    world: World,
    launched: Mapping[str, object],
    *,
    auto: Mapping[str, object] | None = None,
    step: int,
) -> Attempt:
    """Record in the run folder what runs there from now on, and how.

    Args:
        owned: the run folder.
        config: the experiment.
        world: the ranks that take part.
        launched: the settings of this launch as they were resolved.
        auto: what the keys of the experiment that are auto stand for.
        step: optimiser steps done before.
    """
    return owned.begin(
        config=tomli_w.dumps(experiment(config)),
        provenance={**provenance(world, launched), "auto": auto or {}},
        step=step,
    )
