"""Handwritten digits: 1,797 images of 8 x 8 pixels in 17 grey levels, from digits.npz in this folder.

Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998,
doi:10.24432/C50P49 (CC BY 4.0); its test part, in the order of ``sklearn.datasets.load_digits()``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trainer.config.settings import DataConfig
from trainer.data.base import Splits, in_memory_splits
from trainer.data.sets.holdout import stratified_split

FILE = Path(__file__).with_name("digits.npz")
"""``images``: uint8 [1797, 8, 8] from 0 to 16; ``labels``: uint8 [1797]."""


def digits(config: DataConfig) -> Splits:
    """Return the digits; a stratified shuffle holds out ``config.val_fraction`` of them for validation."""
    with np.load(FILE) as arrays:
        images = torch.from_numpy(arrays["images"] * 15)[:, None]  # 0..16 becomes 0..240
        labels = torch.from_numpy(arrays["labels"]).long()
    train, validation = stratified_split(labels, fraction=config.val_fraction, seed=config.split_seed)
    return in_memory_splits(
        (images[train], labels[train]),
        (images[validation], labels[validation]),
        classes=tuple("0123456789"),
        padding=config.crop_padding,
        flip=config.flip,
    )
