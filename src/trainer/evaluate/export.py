"""``trainer export RUN FILE``: the weights of a run, with all that plain torch needs to classify an image by them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from slipway.base.errors import labelled
from slipway.checkpoint.export import SAFETENSORS, require_new, write
from slipway.checkpoint.header import Header
from trainer.config import arguments
from trainer.config.errors import ConfigError, UsageError
from trainer.config.settings import Config
from trainer.data.sets import open_data
from trainer.evaluate.trained_run import (
    TrainedRun,
    check_config,
    check_data,
    find_source,
    images,
    model_of,
    read_trained,
)
from trainer.training.checkpoint import IMAGES

NAME = "export"
SUFFIXES = (SAFETENSORS, ".pt", ".pth")
TAKEN = {"data": ("data_dir",)}


def main(argv: list[str]) -> int:
    """Export as ``argv`` says; return the exit code.

    Raises:
        SlipwayError: if there is nothing to export, or the file cannot be written.
    """
    found = arguments.read(NAME, argv, arguments.SOURCE, TAKEN)
    target = Path(found.names[1])
    if target.suffix == ".onnx":
        raise UsageError(
            "export-format",
            f"export: {target}: ONNX is not written here, as torch's exporter needs packages that the trainer does not "
            "(onnxscript); torch.onnx.export takes the model with the weights of a .pt file.",
        )
    if target.suffix not in SUFFIXES:
        raise UsageError("export-format", f"export: {target} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}.")
    require_new(target)
    source = find_source(found.names[0], best=found.own["best"])
    config = source.settings(found.own["config"], found.overrides)
    path, checkpoint = read_trained(source)
    check_config(checkpoint.header, config)
    model = model_of(checkpoint, average=found.own["average"])
    about = _about(checkpoint.header, config, source) | {"average": model.is_average}
    if target.suffix == SAFETENSORS:
        write(target, model.state, metadata={name: json.dumps(value) for name, value in about.items()})
    else:
        write(target, {"state_dict": model.state, **about})
    what = "the average of the weights" if model.is_average else "the weights"
    sys.stdout.write(f"{target}: {what} of {path}, {config.model.arch} for {len(about['classes'])} classes\n")
    return 0


def _about(header: Header, config: Config, source: TrainedRun) -> dict[str, Any]:
    """Return what goes beside the weights, all of it text, numbers and lists.

    Only checkpoints of an earlier version need the data for that.
    """
    found = header.facts.get(IMAGES)
    if found is None:
        try:
            dataset = open_data(replace(config.data, download=False)).train
        except ConfigError as error:
            raise ConfigError(
                error.slug,
                f"{source.path} is of a version that did not save the names of classes, so it needs the data: {error}",
            ) from error
        if warning := check_data(header, dataset, config):
            sys.stderr.write(f"trainer: {labelled('warning', 'different-data', warning)}\n")
        found = images(header, dataset)
    return {
        "arch": config.model.arch,
        "classes": found["classes"],
        "image_shape": found["shape"],
        "resize": config.data.resize,
        "mean": found["mean"],
        "std": found["std"],
        "step": header.position.step,
    }
