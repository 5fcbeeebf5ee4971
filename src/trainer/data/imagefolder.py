"""A folder a class: images are decoded, cropped and resized by worker processes, and stay uint8."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor

from slipway.reading import open_regular
from trainer.config import DataConfig
from trainer.data.base import Draws, Fetched, Ids, Splits
from trainer.data.split import stratified_split
from trainer.errors import ConfigError

Image.MAX_IMAGE_PIXELS = None  # max_image_pixels takes the place of PIL's own limit, in each process that decodes
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".ppm"}
IMAGENET = (
    torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64),
    torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64),
)
"""Mean and standard deviation of ImageNet's channels, which pretrained weights expect (torchvision's documentation)."""
PLAIN = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
"""Mean and standard deviation that leave values from 0 to 1 as they are."""
WIDE_GREY = {"PNG", "PPM"}
"""Formats of which PIL gives 16 bits of grey as mode I, of 32 (its handbook, "Image file formats")."""
BITS_PER_SAMPLE = 258
"""Tag of a TIFF (TIFF 6.0, section 8)."""
CENTRE = 224 / 256
"""Edge of the central validation crop over the shorter edge of the image, as usual for ImageNet."""

OF_THE_FILE = {None, errno.ENOENT, errno.ENXIO, errno.EINVAL, errno.ELOOP}
"""Error numbers that say something of one file: it is gone, or no regular file; None is PIL's own. Others are the
disk's."""

Box = tuple[float, float, float, float]
"""Left, upper, right, lower, in pixels."""


@dataclass(frozen=True)
class ImageFolder:
    """Image files, decoded when they are fetched."""

    paths: list[Path]
    labels: Tensor
    classes: tuple[str, ...]
    size: int
    mean_std: tuple[Tensor, Tensor]
    squash: bool
    resized_crop: bool = False
    flip: bool = False
    max_pixels: int = field(kw_only=True)
    in_memory: bool = field(default=False, init=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return 3, self.size, self.size

    @property
    def draws(self) -> int:
        """Area, aspect ratio, vertical place, horizontal place, flip."""
        return 5 if self.resized_crop or self.flip else 0

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.paths)

    def describe(self, sample: int) -> str:
        """Return the path of the image."""
        return str(self.paths[sample])

    def fetch(self, ids: Ids, draws: Draws | None) -> Fetched:
        """Decode the images ``ids``; see Dataset."""
        images = torch.zeros(len(ids), *self.shape, dtype=torch.uint8)
        bad, reasons = [], []
        for position, sample in enumerate(ids):
            try:
                images[position] = self._decode(self.paths[sample], None if draws is None else draws[position])
            except MemoryError:
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno not in OF_THE_FILE:
                    raise
                bad.append(position)
                reasons.append(_reason(error))
        return Fetched(images, bad, reasons)

    def _decode(self, path: Path, draws: Draws | None) -> Tensor:
        with open_regular(path) as file, Image.open(file) as image:
            if image.width * image.height > self.max_pixels:
                raise ValueError(f"{image.width} x {image.height} pixels: more than max_image_pixels={self.max_pixels}")
            box = self._box(image.width, image.height, draws)
            # reducing_gap lets PIL shrink in two steps, the first of which is cheap.
            pixels = (
                _eight_bit(image)
                .convert("RGB")
                .resize((self.size, self.size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
            )
        if self.flip and draws is not None and not round(float(draws[4])):
            pixels = pixels.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)

    def _box(self, width: int, height: int, draws: Draws | None) -> Box:
        if self.resized_crop and draws is not None:
            return random_box(width, height, draws)
        return (0, 0, width, height) if self.squash else centre_box(width, height)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Return ``image`` with 8 bits a channel; of grey values of 16 bits the upper ones, where PIL would cut them off.

    Raises:
        ValueError: for numbers whose range is not known.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in WIDE_GREY):
        bits = image.tag_v2.get(BITS_PER_SAMPLE, (16,))[0] if isinstance(image, TiffImageFile) else 16
        return Image.fromarray((np.asarray(image) >> (bits - 8)).astype(np.uint8))
    if image.mode in {"I", "F"}:
        raise ValueError(f"its values (mode {image.mode}) are of no known range")
    return image


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "no image of a known format"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__


def centre_box(width: int, height: int) -> Box:
    """Return the central square."""
    edge = CENTRE * min(width, height)
    left, upper = (width - edge) / 2, (height - edge) / 2
    return left, upper, left + edge, upper + edge


def random_box(width: int, height: int, draws: Draws) -> Box:
    """Return a box of 8-100 % of the area and an aspect ratio of 3/4-4/3, within the image, in pixels.

    The ranges are those of C. Szegedy et al., Going deeper with convolutions, 2015. Where a box would stand out of the
    image, that edge is cut to the image's: a fixed number of draws a sample keeps augmentation reproducible.
    """
    area = (0.08 + 0.92 * float(draws[0])) * width * height
    ratio = math.exp((2 * float(draws[1]) - 1) * math.log(4 / 3))
    box_width = min(width, math.sqrt(area * ratio))
    box_height = min(height, math.sqrt(area / ratio))
    upper = float(draws[2]) * (height - box_height)
    left = float(draws[3]) * (width - box_width)
    return left, upper, left + box_width, upper + box_height


def imagefolder(config: DataConfig) -> Splits:
    """Return ``data_dir``/train and ``data_dir``/val, or ``data_dir`` itself split by ``val_fraction``."""
    root = Path(config.data_dir)
    if (root / "train").is_dir() or (root / "val").is_dir():
        return _two_folders(config, root)
    paths, labels, classes = _scan(root)
    parts = stratified_split(labels, fraction=config.val_fraction, seed=config.split_seed)
    train, validation = (([paths[i] for i in ids.tolist()], labels[ids], classes) for ids in parts)
    return _splits(config, train, validation)


def _two_folders(config: DataConfig, root: Path) -> Splits:
    train, validation = _scan(root / "train"), _scan(root / "val")
    if differing := set(train[2]) ^ set(validation[2]):
        raise ConfigError(
            f"{root}: train/ and val/ must hold the same classes, but these stand on one side only: "
            f"{', '.join(sorted(differing))}."
        )
    return _splits(config, train, validation)


Scanned = tuple[list[Path], Tensor, tuple[str, ...]]


def _splits(config: DataConfig, train: Scanned, validation: Scanned) -> Splits:
    statistics = IMAGENET if config.normalise else PLAIN
    prepared = (config.image_size, statistics, config.resize == "squash")
    most = config.max_image_pixels
    return Splits(
        ImageFolder(*train, *prepared, resized_crop=config.resized_crop, flip=config.flip, max_pixels=most),
        ImageFolder(*validation, *prepared, max_pixels=most),
    )


def _scan(folder: Path) -> Scanned:
    """Return the image files below each sub-folder of ``folder`` in sorted order, their classes, and the names."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: --data-dir must hold train/ and val/, or one folder a class.")
    classes = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))
    found = [
        (path, label)
        for label, name in enumerate(classes)
        for path in sorted(_files_below(folder / name))
        if path.suffix.lower() in SUFFIXES
    ]
    present = {label for _, label in found}
    empty = [name for label, name in enumerate(classes) if label not in present]
    if not found or empty:
        which = f"in {', '.join(empty)}" if classes else "and no class folder"
        raise ConfigError(f"{folder}: no image {which}; each class needs a folder of {', '.join(sorted(SUFFIXES))}.")
    return [path for path, _ in found], torch.tensor([label for _, label in found]), classes


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield all files below ``folder``, not through links to folders.

    Raises:
        ConfigError: where a folder cannot be read: its images would be missing without a word.
    """

    def refuse(error: OSError) -> NoReturn:
        raise ConfigError(f"cannot read the folder {error.filename}: {error.strerror}.") from error

    for parent, _, names in os.walk(folder, onerror=refuse):
        for name in names:
            yield Path(parent, name)
