"""User-defined data sets: ``--dataset package.module:factory``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from slipway.base.flags import is_utf8
from trainer.config.errors import ConfigError
from trainer.config.plugin import call_factory, reason_of
from trainer.config.settings import DataConfig
from trainer.data.base import Splits


def open_plugin_dataset(config: DataConfig) -> Splits:
    """Return ``factory(config)``: two data sets with the protocol ``trainer.data.sets.Dataset``.

    Raises:
        ConfigError: if the factory cannot be imported or fails, or if it does not return two such data sets.
    """
    name = config.dataset
    found = call_factory("--dataset", name, config)
    if not (isinstance(found, tuple) and len(found) == len(Splits._fields)):
        raise ConfigError(
            "bad-plugin",
            f"--dataset {name} returned a {type(found).__name__}: it must return Splits(train, validation).",
        )
    for part, dataset in zip(Splits._fields, found, strict=True):
        try:
            wrong = _protocol_violation(dataset) or _invalid_class_name(dataset.classes)
        except Exception as error:
            raise ConfigError(
                "bad-plugin", f"--dataset {name}: its {part} split is not a Dataset: {reason_of(error)}"
            ) from error
        if wrong:
            raise ConfigError("bad-plugin", f"--dataset {name}: its {part} split is not valid: {wrong}")
    return Splits(*found)


def _protocol_violation(dataset: Any) -> str:
    """Return the first violation of trainer.data.sets.Dataset by ``dataset``; "" if there is none."""
    count, labels, shape = len(dataset), dataset.labels, dataset.shape
    if count < 1:
        return "it has no samples."
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.shape != (count,):
        return f"labels must be an int64 tensor [{count}], one for each sample."
    if not 0 <= int(labels.min()) <= int(labels.max()) < len(dataset.classes):
        return f"labels must be from 0 to {len(dataset.classes) - 1}, because it has {len(dataset.classes)} classes."
    images = dataset.fetch(torch.zeros(1, dtype=torch.int64).numpy(), None).images
    if images.dtype != torch.uint8 or images.shape != (1, *shape):
        return f"fetch([0], None) must return images uint8 {[1, *shape]}, not {images.dtype} {list(images.shape)}."
    mean, std = dataset.mean_std
    if mean.shape != (shape[0],) or std.shape != (shape[0],):
        return f"mean_std must be two tensors [{shape[0]}], one value for each channel."
    _ = dataset.in_memory, dataset.draws, dataset.describe(0)
    return ""


def _invalid_class_name(classes: Iterable[str]) -> str:
    """Return a message on the first name in ``classes`` that result tables cannot hold; "" if there is none."""
    unfit = [name for name in classes if not is_utf8(name)]
    return f"the class name {unfit[0]!r} is not UTF-8, which result tables need." if unfit else ""
