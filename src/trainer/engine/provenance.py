"""Record, in a run folder, of how the trainer was started."""

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
    """Begin an attempt and record its experiment and launch in the run folder.

    Args:
        owned: the run folder.
        config: the experiment.
        world: this rank's place in the world.
        launched: the resolved settings of this launch.
        auto: resolved values of the experiment's keys that are auto.
        step: optimizer steps done before this attempt.
    """
    return owned.begin(
        config=tomli_w.dumps(experiment(config)),
        provenance={**provenance(world, launched), "auto": auto or {}},
        step=step,
    )
