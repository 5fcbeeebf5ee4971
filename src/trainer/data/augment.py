"""Augmentation of a whole batch at once, with random numbers drawn in advance."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def crop_flip(images: Tensor, draws: Tensor, *, padding: int, flip: bool) -> Tensor:
    """Shift each image by up to ``padding`` pixels, fill with black, and mirror about half of them if ``flip``.

    Args:
        images: uint8 [n, c, h, w].
        draws: uniform in [0, 1), float32 [n, 3]: vertical shift, horizontal shift, flip.
        padding: pixels added on each side before the crop to the original size.
        flip: whether to mirror the images whose third draw is at most one half.

    Returns:
        uint8 [n, c, h, w], the same on every device.
    """
    count, _, height, width = images.shape
    offsets = (draws[:, :2] * (2 * padding + 1)).long()
    rows = offsets[:, :1] + torch.arange(height, device=images.device)
    columns = offsets[:, 1:] + torch.arange(width, device=images.device)
    if flip:
        columns = torch.where(draws[:, 2:].round().bool(), columns, columns.flip(1))
    padded = F.pad(images, (padding,) * 4)
    batch = torch.arange(count, device=images.device)[:, None, None]
    # Indices on both sides of the channel slice put the channels last: [n, h, w, c].
    return padded[batch, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
