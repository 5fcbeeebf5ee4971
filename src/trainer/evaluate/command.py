"""``trainer evaluate RUN``: evaluate a checkpoint on the validation set as its run does, on any number of ranks.

The command only reads the run folder. Results go to the terminal and to the folder of ``--output``.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from slipway.base.environment import Environment, read_environment
from slipway.base.errors import warn
from slipway.base.files import write_json
from slipway.base.stop import Reason, StopRequest
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import from_manifest, to_manifest
from slipway.checkpoint.stateful import restore
from slipway.dist.collectives import broadcast_json, run_on_root
from slipway.dist.communicator import Communicator
from trainer.config import arguments
from trainer.config.errors import ConfigError
from trainer.config.settings import Settings
from trainer.data.loader import Loader
from trainer.data.sets import Dataset, open_on_ranks
from trainer.engine.auto_precision import saved, settled
from trainer.engine.checkpoint import IMAGES
from trainer.engine.evaluation import Evaluation, evaluate
from trainer.evaluate.trained_run import (
    TrainedRun,
    check_config,
    check_data,
    find_source,
    model_of,
    read_trained,
)
from trainer.launch.rank import abort_rank, finish_rank, start_logging
from trainer.launch.spawn import spawn
from trainer.model import initial_model
from trainer.model.compilation import compile_in_place, require_compiler
from trainer.model.normalise import Normalise, normalisation
from trainer.optim.amp import autocast
from trainer.parallel.strategy import connect
from trainer.parallel.threads import set_threads
from trainer.results.summary import CONFUSION, log_accuracy, write_tables

NAME = "evaluate"
OWN = {
    **arguments.SOURCE,
    "output": {
        "flag": "--output",
        "type": "string",
        "default": "",
        "description": "Output folder, new or empty and outside the run folder, for evaluation.json, classes.csv "
        "(samples, recall and precision of each class) and confusion.csv; by default no files are written.",
    },
}
TAKEN = {
    "data": ("data_dir", "download", "workers"),
    "train": ("val_batch_size",),
    "launch": (
        *("backend", "device", "dist_backend", "init_method"),
        *("collective_timeout", "nproc_per_node", "threads"),
    ),
}

log = logging.getLogger(__name__)


class Plan(NamedTuple):
    """Checkpoint, settings and output folder of an evaluation."""

    source: TrainedRun
    settings: Settings
    average: bool
    output: Path | None


@dataclass(frozen=True)
class Trained:
    """A model from a checkpoint that implements ``trainer.engine.evaluation.Classifier``, like a learner."""

    evaluated: nn.Module
    comm: Communicator
    normalise: Normalise
    amp: str

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return the logits [n, classes] of uint8 images [n, c, h, w]."""
        with autocast(self.amp, self.comm.device):
            logits: Tensor = self.evaluated(self.normalise(images))
        return logits.to(self.comm.device, self.normalise.dtype)

    def sync_buffers(self) -> None:
        """Do nothing: all ranks already hold the checkpoint's buffers."""


def main(argv: list[str]) -> int:
    """Evaluate the run in ``argv`` as one rank of the launcher's world; return the exit code.

    Raises:
        SlipwayError: if the evaluation cannot begin.
    """
    plan = _plan(argv)
    environment = read_environment(os.environ)
    if plan.settings.launch.nproc_per_node:
        request = StopRequest()
        request.listen()
        return spawn(partial(_run_rank, plan), plan.settings, request, environment)
    return _run_rank(plan, plan.settings, None, environment)


def _run_rank(plan: Plan, settings: Settings, request: StopRequest | None, environment: Environment) -> int:
    """Evaluate as one rank; ``settings`` are the plan's except for the rendezvous. A signal ends the rank at once."""
    if request:
        request.close()
    comm, _ = connect(settings, environment)
    start_logging(comm.world)
    try:
        set_threads(settings.launch.threads, comm, omp_threads=environment.threads)
        _evaluate(plan, comm)
    except Exception as error:  # noqa: BLE001 -- abandon reports it and ends the process
        abort_rank(error, comm.world)
    return finish_rank(comm, environment, Reason.NONE)


def _plan(argv: list[str]) -> Plan:
    """Return the plan that ``argv`` describes.

    Raises:
        SlipwayError: if ``argv`` or the run is invalid.
    """
    found = arguments.read(NAME, argv, OWN, TAKEN)
    source = find_source(found.names[0], best=found.own["best"])
    settings = source.settings(found.own["config"], found.overrides)
    settings = replace(
        settings,
        # Turn off options of training only: this launch may lack what they need.
        data=replace(settings.data, decoder="pil"),  # as for validation images in training
        model=replace(settings.model, weights=None, split=None, recompute=False, sync_bn=False),
        run=replace(settings.run, fp16_compression=False),
        launch=found.launch,
    )
    output = found.own["output"]
    return Plan(source, settings, found.own["average"], Path(output) if output else None)


def _evaluate(plan: Plan, comm: Communicator) -> None:
    """Evaluate on all ranks; rank 0 reads the checkpoint and reports the result."""
    settings = plan.settings
    if plan.output:
        run_on_root(comm, lambda: _make_folder(plan))
    read = run_on_root(comm, lambda: _read(plan))
    shared = broadcast_json(comm, read and {**read.facts, "manifest": to_manifest(read.checkpoint.header)})
    header = from_manifest(shared["manifest"])
    settings = settled(settings, saved(header))
    parts = open_on_ranks(settings.data, comm)
    if warning := run_on_root(comm, lambda: check_data(header, parts.train, settings.data.data_dir)):
        warn(log, "different-data", warning)
    model = _model(settings, comm, read and read.checkpoint, parts.train)
    about = header.facts[IMAGES]
    mean_std = (torch.tensor(about["mean"], dtype=torch.float64), torch.tensor(about["std"], dtype=torch.float64))
    trained = Trained(model, comm, normalisation(settings, mean_std, comm.device), settings.train.amp)
    loader = Loader(
        parts.validation,
        workers=settings.data.workers,
        device=comm.device,
        warn=log.warning,
        memory_fraction=settings.data.device_memory_fraction,
    )
    log.info(
        "%s%s on the validation set of %s, %d rank(s) on %s",
        shared["checkpoint"],
        " (average of the weights)" if shared["average"] else "",
        *(settings.data.dataset, comm.world.size, comm.device.type),
    )
    result = evaluate(trained, loader, batch_size=settings.train.val_batch_size, limit=len(parts.validation))
    loader.close()
    log.info("validation loss %.6f", result.loss)
    log_accuracy(result)
    if plan.output:
        facts = {**shared, "step": header.position.step, "ranks": comm.world.size}
        facts.pop("manifest")
        run_on_root(comm, lambda: _write(plan, facts, result, parts.validation.classes))
        log.info("confusion matrix: %s", plan.output / CONFUSION)
        log.info("%s holds all tables", plan.output)


def _make_folder(plan: Plan) -> None:
    """Create the folder for the results, before the evaluation begins."""
    folder, own = plan.output, plan.source.run or plan.source.path
    assert folder
    if folder.resolve().is_relative_to(own.resolve()):
        raise ConfigError(
            "folder-in-use", f"--output {folder} is inside {own}, which a run may be using: choose another folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError("file-exists", f"--output {folder} is not empty: choose another folder.")
    except OSError as error:
        raise ConfigError("cannot-write", f"--output {folder} cannot be created: {error.strerror}.") from error


class Read(NamedTuple):
    """The data that rank 0 has read."""

    checkpoint: Checkpoint
    """The checkpoint, with only the component "model": the weights to evaluate."""
    facts: dict[str, Any]
    """The checkpoint's path, and whether the weights are the moving average."""


def _read(plan: Plan) -> Read:
    path, found = read_trained(plan.source)
    check_config(found.header, plan.settings)
    model = model_of(found, average=plan.average)
    only = Checkpoint({"model": model.state}, found.header._replace(trees={}))
    return Read(only, {"checkpoint": str(path), "average": model.is_average})


def _model(settings: Settings, comm: Communicator, found: Checkpoint | None, dataset: Dataset) -> nn.Module:
    """Return the model on this rank's device with the weights ``found`` on rank 0; compile it if configured."""
    model = initial_model(settings, shape=dataset.shape, classes=len(dataset.classes))
    try:
        restored = restore({"model": model}, found, comm)
    except RuntimeError as error:  # the message of load_state_dict lists the differences
        said = " ".join(str(error).split())
        raise ConfigError(
            "different-model", f"{settings.model.arch} is not the model of the checkpoint: {said}"
        ) from error
    assert restored
    model.to(comm.device)
    if settings.model.compile:
        require_compiler(comm)
        compile_in_place(model)
    return model


def _write(plan: Plan, facts: Mapping[str, Any], result: Evaluation, classes: Sequence[str]) -> None:
    """Write evaluation.json and the tables."""
    assert plan.output
    write_tables(result, classes, plan.output)
    numbers = {
        "samples": result.samples,
        "undecodable": result.bad,
        "loss": result.loss if math.isfinite(result.loss) else None,
        "accuracy": result.accuracy,
        "top5": result.top5,
    }
    write_json(plan.output / "evaluation.json", {**facts, **numbers})
