"""``trainer export RUN FILE``: write a run's weights with the metadata that plain torch needs to classify images."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from slipway.checkpoint.export import SAFETENSORS, require_new, write
from slipway.checkpoint.header import Header
from trainer.config import arguments
from trainer.config.errors import ConfigError
from trainer.config.settings import Config
from trainer.engine.checkpoint import IMAGES
from trainer.evaluate.trained_run import (
    check_config,
    find_source,
    model_of,
    read_trained,
)

NAME = "export"
OWN = arguments.SOURCE
SUFFIXES = (SAFETENSORS, ".pt", ".pth")


def main(argv: list[str]) -> int:
    """Export the run in ``argv``; return the exit code.

    Raises:
        SlipwayError: if the run has no usable checkpoint or the file cannot be written.
    """
    found = arguments.read(NAME, argv, OWN, {})
    target = Path(found.names[1])
    if target.suffix == ".onnx":
        raise ConfigError(
            "export-format",
            f"export: {target}: ONNX is not supported, because torch's exporter needs packages that the trainer does "
            "not need (onnxscript): export a .pt file, load it into the model, and call torch.onnx.export.",
        )
    if target.suffix not in SUFFIXES:
        raise ConfigError(
            "export-format", f"export: {target} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}."
        )
    require_new(target)
    source = find_source(found.names[0], best=found.own["best"])
    config = source.settings(found.own["config"], found.overrides)
    path, checkpoint = read_trained(source)
    check_config(checkpoint.header, config)
    model = model_of(checkpoint, average=found.own["average"])
    about = _about(checkpoint.header, config) | {"average": model.is_average}
    if target.suffix == SAFETENSORS:
        write(target, model.state, metadata={name: json.dumps(value) for name, value in about.items()})
    else:
        write(target, {"state_dict": model.state, **about})
    what = "the average of the weights" if model.is_average else "the weights"
    sys.stdout.write(f"{target}: {what} of {path}, {config.model.arch} for {len(about['classes'])} classes\n")
    return 0


def _about(header: Header, config: Config) -> dict[str, Any]:
    """Return the metadata stored with the weights: only strings, numbers and lists."""
    found = header.facts[IMAGES]
    return {
        "arch": config.model.arch,
        "classes": found["classes"],
        "image_shape": found["shape"],
        "resize": config.data.resize,
        "mean": found["mean"],
        "std": found["std"],
        "step": header.position.step,
    }
