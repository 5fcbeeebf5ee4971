"""scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels in 17 grey levels, inside the library.

Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

import torch

from trainer.config import DataConfig
from trainer.data.base import Splits, in_memory_splits
from trainer.data.split import stratified_split


def digits(config: DataConfig) -> Splits:
    """Return the digits, ``config.val_fraction`` of them held out by a stratified shuffle."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 -- slow to import, and only this set needs it

    bunch = load_digits()
    images = torch.from_numpy(bunch.images * 15).to(torch.uint8)[:, None]  # 0..16 becomes 0..240
    labels = torch.from_numpy(bunch.target).long()
    train, test = stratified_split(labels, fraction=config.val_fraction, seed=config.split_seed)
    return in_memory_splits(
        (images[train], labels[train]),
        (images[test], labels[test]),
        classes=tuple(map(str, bunch.target_names)),
        padding=config.crop_padding,
        flip=config.flip,
    )
