"""Where Lightning's Trainer stands: random numbers by epoch, and the batches of an epoch that were trained already.

Lightning saves neither generators nor, of most loaders, the place in an epoch. ``SlipwayCallback`` calls these methods
in its hooks of the same names.
"""

from __future__ import annotations

import logging
from typing import Any

from slipway.base.errors import warn
from slipway.dist.collectives import all_gather_json
from slipway.dist.communicator import Communicator
from slipway.rng.seeding import Generators, Purpose

log = logging.getLogger(__name__)

Saved = dict[str, Any]
"""What the callback's state in a checkpoint says.

``batch``: batches done in the epoch, 0 at its end. ``generators``: of each rank. ``should_stop``: whether a callback
has ended the training, as EarlyStopping does.
"""


class LightningPlace:
    """The place of a fit on this rank."""

    def __init__(self, trainer: Any, module: Any, comm: Communicator, *, seed: int) -> None:
        """Seed for the first epoch, whose loader the Trainer begins to iterate before any hook of the epoch.

        Args:
            trainer: Lightning's.
            module: that trains, on its device.
            comm: of this rank.
            seed: of the run.
        """
        self._trainer, self._comm = trainer, comm
        self._generators = Generators(seed, comm.world.rank, module.parameters())
        self._is_first = True
        self.seed()

    def seed(self) -> None:
        """Seed for the epoch that begins."""
        self._generators.seed(Purpose.EPOCH, self._trainer.current_epoch)

    def save(self) -> Saved:
        """Return the place; all ranks call this, where a checkpoint is written."""
        progress = self._trainer.fit_loop.epoch_loop.batch_progress
        batch = 0 if progress.is_last_batch else progress.current.ready
        generators = all_gather_json(self._comm, self._generators.capture() if batch else None)
        return {"batch": batch, "generators": generators, "should_stop": self._trainer.should_stop}

    def on_train_epoch_start(self) -> None:
        """Begin an epoch: its random numbers depend on nothing before."""
        self.seed()
        if self._is_first and self._trainer.current_epoch and self._can_replay:
            iter(self._fetcher)  # the Trainer has begun to iterate, under other seeds, in a resumed run alone
        self._is_first = False

    def on_train_start(self, saved: Saved | None) -> None:
        """Come to the place in the epoch at which a checkpoint was saved; ``saved`` there, None if it says nothing."""
        self._warn_of_plateaus()
        if saved and saved.get("should_stop"):
            log.info("a callback has ended the training early, and so the run is done")
            self._trainer.should_stop = True
        progress = self._trainer.fit_loop.epoch_loop.batch_progress
        done = 0 if progress.is_last_batch else progress.current.ready
        if not done:
            return
        generators = saved["generators"] if saved and saved["batch"] == done else []
        if not self._is_stateful:
            if not (self._can_replay and len(generators) == self._comm.world.size):
                self._warn_of_middle(done, generators)
                return
            self._replay(done)
        if len(generators) == self._comm.world.size:
            self._generators.restore(generators[self._comm.world.rank])
        else:
            self._warn_of_middle(done, generators)
        self._is_first = False

    # Inside.

    @property
    def _fetcher(self) -> Any:
        return getattr(self._trainer.fit_loop, "_data_fetcher", None)

    @property
    def _loaders(self) -> list[Any]:
        return list(getattr(getattr(self._trainer.fit_loop, "_combined_loader", None), "flattened", []))

    @property
    def _is_stateful(self) -> bool:
        """Whether the loaders keep their place themselves, which the Trainer saves."""
        found = self._loaders
        return bool(found) and all(hasattr(each, "state_dict") and hasattr(each, "load_state_dict") for each in found)

    @property
    def _can_replay(self) -> bool:
        """Whether batches can be taken here: not if the training step takes them itself (``dataloader_iter``)."""
        return not self._is_stateful and hasattr(self._fetcher, "batches")

    def _replay(self, done: int) -> None:
        """Iterate anew, under the seeds of the epoch, and drop the batches that were trained."""
        if self._comm.world.is_root:
            warn(log, "slow-resume", "%d batches that were trained are fetched again and dropped", done)
        fetcher = self._fetcher
        for loader in self._loaders:  # the Trainer names the epoch to samplers only after this
            for holder in (loader, getattr(loader, "batch_sampler", None)):
                sampler: Any = getattr(holder, "sampler", None)
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(self._trainer.current_epoch)
        self.seed()
        iter(fetcher)
        if not self._trainer.current_epoch:
            self.seed()  # as on_train_epoch_start does; later epochs are iterated after that
        for _ in range(done):
            next(fetcher)
        fetcher.fetched -= done  # the Trainer adds them

    def _warn_of_middle(self, done: int, generators: list[Any]) -> None:
        why = "its checkpoint, or this training step, lets no batches be skipped"
        if generators and len(generators) != self._comm.world.size:
            why = f"it was saved on {len(generators)} rank(s), and runs on {self._comm.world.size}"
        if self._comm.world.is_root:
            warn(
                log,
                "lightning-inexact",
                "resumed after %d batches of epoch %d, not exactly: %s. Samples of this epoch may be seen twice "
                "or not at all, and random numbers differ",
                *(done, self._trainer.current_epoch, why),
            )

    def _warn_of_plateaus(self) -> None:
        configs = getattr(self._trainer, "lr_scheduler_configs", [])
        if self._comm.world.is_root and any(each.reduce_on_plateau and each.interval == "epoch" for each in configs):
            warn(
                log,
                "lightning-inexact",
                "ReduceLROnPlateau misses one of its steps each time that the run is resumed from the end of an epoch",
            )
