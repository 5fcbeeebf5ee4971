"""Position of a Lightning Trainer: random numbers of each epoch, and the batches of an epoch already trained.

Lightning saves neither random generators nor, for most loaders, the position in an epoch. ``SlipwayCallback`` calls
these methods in its hooks of the same names.
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
"""The callback's state in a checkpoint.

``batch``: batches done in the epoch, 0 at its end. ``generators``: generator states of each rank. ``should_stop``:
whether a callback, such as EarlyStopping, has ended the training.
"""


class LightningPlace:
    """Position of a fit on this rank."""

    def __init__(self, trainer: Any, module: Any, comm: Communicator, *, seed: int) -> None:
        """Seed for the first epoch, because the Trainer starts to iterate its loader before any hook of the epoch.

        Args:
            trainer: Lightning's Trainer.
            module: the LightningModule, on its device.
            comm: communicator of this rank.
            seed: the run's seed.
        """
        self._trainer, self._comm = trainer, comm
        self._generators = Generators(seed, comm.world.rank, module.parameters())
        self._is_first = True
        self.seed()

    def seed(self) -> None:
        """Seed the generators for the current epoch."""
        self._generators.seed(Purpose.EPOCH, self._trainer.current_epoch)

    def save(self) -> Saved:
        """Return the position for a checkpoint; all ranks must call this."""
        progress = self._trainer.fit_loop.epoch_loop.batch_progress
        batch = 0 if progress.is_last_batch else progress.current.ready
        generators = all_gather_json(self._comm, self._generators.capture() if batch else None)
        return {"batch": batch, "generators": generators, "should_stop": self._trainer.should_stop}

    def on_train_epoch_start(self) -> None:
        """Seed for the epoch, so that its random numbers do not depend on earlier epochs."""
        self.seed()
        if self._is_first and self._trainer.current_epoch and self._can_replay:
            iter(self._fetcher)  # in a resumed run only, the Trainer has started to iterate with other seeds
        self._is_first = False

    def on_train_start(self, saved: Saved | None) -> None:
        """Advance to the saved position in the epoch; ``saved`` is the checkpoint's state, None if it has none."""
        self._warn_of_plateaus()
        if saved and saved.get("should_stop"):
            log.info("a callback ended the training early in an earlier attempt, so the run is done")
            self._trainer.should_stop = True
        progress = self._trainer.fit_loop.epoch_loop.batch_progress
        done = 0 if progress.is_last_batch else progress.current.ready
        if not done:
            return
        generators = saved["generators"] if saved and saved["batch"] == done else []
        if self._is_stateful:
            self._warn_of_loader(done)
        else:
            if not (self._can_replay and len(generators) == self._comm.world.size):
                self._warn_of_middle(done, generators)
                return
            self._replay(done)
        if len(generators) == self._comm.world.size:
            self._generators.restore(generators[self._comm.world.rank])
        else:
            self._warn_of_middle(done, generators)
        self._is_first = False

    # Private helpers.

    @property
    def _fetcher(self) -> Any:
        return getattr(self._trainer.fit_loop, "_data_fetcher", None)

    @property
    def _loaders(self) -> list[Any]:
        return list(getattr(getattr(self._trainer.fit_loop, "_combined_loader", None), "flattened", []))

    @property
    def _is_stateful(self) -> bool:
        """Whether the loaders track their own position, which the Trainer saves."""
        found = self._loaders
        return bool(found) and all(hasattr(each, "state_dict") and hasattr(each, "load_state_dict") for each in found)

    @property
    def _can_replay(self) -> bool:
        """Whether batches can be fetched here; not if the training step fetches them itself (``dataloader_iter``)."""
        return not self._is_stateful and hasattr(self._fetcher, "batches")

    def _replay(self, done: int) -> None:
        """Iterate again with the seeds of the epoch, and drop the batches already trained."""
        if self._comm.world.is_root:
            warn(log, "slow-resume", "fetching and dropping %d batches that were already trained", done)
        fetcher = self._fetcher
        for loader in self._loaders:  # the Trainer calls set_epoch only after this
            for holder in (loader, getattr(loader, "batch_sampler", None)):
                sampler: Any = getattr(holder, "sampler", None)
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(self._trainer.current_epoch)
        self.seed()
        iter(fetcher)
        if not self._trainer.current_epoch:
            self.seed()  # as on_train_epoch_start does, after which later epochs are iterated
        for _ in range(done):
            next(fetcher)
        fetcher.fetched -= done  # the Trainer adds them again

    def _warn_of_middle(self, done: int, generators: list[Any]) -> None:
        why = "the checkpoint or the training step does not permit skipping batches"
        if generators and len(generators) != self._comm.world.size:
            why = f"the run was saved on {len(generators)} rank(s) and continues on {self._comm.world.size}"
        if self._comm.world.is_root:
            warn(
                log,
                "lightning-inexact",
                "resumed inexactly after %d batches of epoch %d: %s. Samples of this epoch may be trained twice "
                "or not at all, and random numbers differ",
                *(done, self._trainer.current_epoch, why),
            )

    def _warn_of_loader(self, done: int) -> None:
        if self._comm.world.is_root:
            warn(
                log,
                "lightning-inexact",
                "resumed inexactly after %d batches of epoch %d: the loader restored its own position. Its batches are "
                "the same, but random numbers, such as those of dropout, differ",
                *(done, self._trainer.current_epoch),
            )

    def _warn_of_plateaus(self) -> None:
        configs = getattr(self._trainer, "lr_scheduler_configs", [])
        if self._comm.world.is_root and any(each.reduce_on_plateau and each.interval == "epoch" for each in configs):
            warn(
                log,
                "lightning-inexact",
                "ReduceLROnPlateau misses one step each time the run resumes from the end of an epoch",
            )
