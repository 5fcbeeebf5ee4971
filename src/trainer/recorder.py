"""What rank 0 writes while a run goes on, and at its end: checkpoints, metrics, tables, figures, the status."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Mapping, Sequence

import tomli_w
import torch

from slipway.attempt import Attempt, Ownership
from slipway.checkpoint.folder import Checkpoint
from slipway.checkpoint.saver import Saver
from slipway.checkpoint.store import CheckpointStore
from slipway.position import Position
from slipway.status import Status
from slipway.stop import Reason
from slipway.world import World
from trainer.config import Config, experiment
from trainer.evaluation import Evaluation
from trainer.report.metrics import JsonLines, MetricWriter, Tee, TensorBoard
from trainer.report.summary import write_results


class Recorder:
    """Writes the run folder of an attempt, from its beginning to its end. Rank 0 alone has one."""

    def __init__(
        self, owned: Ownership, config: Config, world: World, launched: Mapping[str, object], position: Position
    ) -> None:
        """Begin an attempt.

        Args:
            owned: the run folder.
            config: the experiment.
            world: the ranks that take part.
            launched: the settings of this launch as they were resolved.
            position: where it begins.
        """
        folder = owned.folder
        self.attempt = begin(owned, config, world, launched, step=position.step)
        store = CheckpointStore(folder.checkpoints, keep=config.run.keep, check_owner=self.attempt.check)
        store.set_aside_after(position.step)
        writers: list[MetricWriter] = [JsonLines(folder.metrics, step=position.step)]
        if config.run.tensorboard:
            writers.append(TensorBoard(folder.path / "tensorboard", step=position.step))
        self.metrics = Tee(writers)
        self._saver = Saver(store)

    def save(self, checkpoint: Checkpoint) -> None:
        """Save ``checkpoint`` in the background.

        Raises:
            LostFolderError: if the run folder is no longer ours.
        """
        self.attempt.check()
        self._saver.save(checkpoint)

    def wait(self) -> None:
        """Wait until nothing is being written any more."""
        self._saver.wait()

    def conclude(
        self,
        reason: Reason,
        position: Position,
        evaluation: Evaluation | None,
        *,
        classes: Sequence[str],
        title: str,
        figures: bool,
    ) -> Status:
        """Make everything durable, and only then say what became of the run.

        Args:
            reason: why it stopped, if it did.
            position: where it ended.
            evaluation: the last one; tables and figures of it are made where the run is done.
            classes: their names.
            title: of the figures.
            figures: whether to draw any.
        """
        self._saver.finish()
        self.metrics.close()
        if evaluation and not reason:
            write_results(self.attempt.folder, evaluation, classes, title=title, figures=figures)
        return self.attempt.conclude(reason, step=position.step)


def begin(owned: Ownership, config: Config, world: World, launched: Mapping[str, object], *, step: int) -> Attempt:
    """Record in the run folder what runs there from now on, and how."""
    provenance = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "command": sys.argv,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "world_size": world.size,
        "launch": launched,
    }
    return owned.begin(config=tomli_w.dumps(experiment(config)), provenance=provenance, step=step)
