"""Data set of image files in one folder per class, or an archive of these; workers decode, crop and resize to uint8."""

from __future__ import annotations

import errno
import logging
import math
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile
from torch import Tensor

from trainer.config.errors import ConfigError
from trainer.config.settings import DataConfig
from trainer.data.base import Draws, Fetched, Ids, Splits
from trainer.data.sets.files import Files, Scanned, Tree, open_tree, skipped_message
from trainer.data.sets.holdout import stratified_split
from trainer.data.sets.jpeg import Box, BoxOf, decode_jpeg

Image.MAX_IMAGE_PIXELS = None  # max_image_pixels replaces PIL's own limit, in each process that decodes
IMAGENET = (
    torch.tensor([0.485, 0.456, 0.406], dtype=torch.float64),
    torch.tensor([0.229, 0.224, 0.225], dtype=torch.float64),
)
"""Mean and standard deviation of ImageNet's channels, which pretrained weights expect (torchvision's documentation)."""
PLAIN = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
"""Mean and standard deviation that do not change values from 0 to 1."""
WIDE_GREY = {"PNG", "PPM"}
"""Formats whose 16-bit grey images PIL returns in the 32-bit mode I (its handbook, "Image file formats")."""
BITS_PER_SAMPLE = 258
"""TIFF tag (TIFF 6.0, section 8)."""
CENTRE = 224 / 256
"""Edge of the central validation crop divided by the image's shorter edge, as usual for ImageNet."""

FILE_ERRNOS = {None, errno.ENOENT, errno.ENXIO, errno.EINVAL, errno.ELOOP}
"""Error numbers that concern one file: it is missing, or is not a regular file; None is PIL's own. Other error numbers
concern the disk."""

log = logging.getLogger(__name__)


class TooLargeError(Exception):
    """An image has too many pixels. Not a ValueError, which simplejpeg raises if it cannot decode an image."""


@dataclass(frozen=True)
class ImageFolder:
    """Data set of image files that are decoded on fetch."""

    files: Files
    numbers: Ids
    """Number of each sample's file among ``files``."""
    labels: Tensor
    classes: tuple[str, ...]
    size: int
    mean_std: tuple[Tensor, Tensor]
    squash: bool
    resized_crop: bool = False
    flip: bool = False
    max_pixels: int = field(kw_only=True)
    decoder: str = field(default="pil", kw_only=True)
    """Decoder of JPEG files: pil or simplejpeg."""
    in_memory: bool = field(default=False, init=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return 3, self.size, self.size

    @property
    def draws(self) -> int:
        """Five numbers (area, aspect ratio, vertical and horizontal position, flip), or 0 without augmentation."""
        return 5 if self.resized_crop or self.flip else 0

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.numbers)

    def describe(self, sample: int) -> str:
        """Return the path of the image."""
        return self.files.describe(int(self.numbers[sample]))

    def fetch(self, ids: Ids, draws: Draws | None) -> Fetched:
        """Decode the images ``ids``; see Dataset."""
        images = torch.zeros(len(ids), *self.shape, dtype=torch.uint8)
        bad, reasons = [], []
        for position, sample in enumerate(ids):
            try:
                images[position] = self._decode(int(self.numbers[sample]), None if draws is None else draws[position])
            except MemoryError:
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno not in FILE_ERRNOS:
                    raise
                bad.append(position)
                reasons.append(_reason(error))
        return Fetched(images, bad, reasons)

    def _decode(self, number: int, draws: Draws | None) -> Tensor:
        def box_of(width: int, height: int) -> Box:
            return self._box(width, height, draws)

        with self.files.open(number) as file:
            image = decode_jpeg(file, self.size, box_of) if self.decoder == "simplejpeg" else None
            if image is None:
                file.seek(0)
                image = self._decode_by_pil(file, box_of)
        mirrored = self.flip and draws is not None and not round(float(draws[4]))
        return image.flip(-1) if mirrored else image

    def _decode_by_pil(self, file: BinaryIO, box_of: BoxOf) -> Tensor:
        with Image.open(file) as image:
            box = box_of(image.width, image.height)
            # With reducing_gap, PIL shrinks in two steps, of which the first is cheap.
            pixels = (
                _eight_bit(image)
                .convert("RGB")
                .resize((self.size, self.size), Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)
            )
        return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)

    def _box(self, width: int, height: int, draws: Draws | None) -> Box:
        if width * height > self.max_pixels:
            raise TooLargeError(f"{width} x {height} pixels: more than max_image_pixels={self.max_pixels}")
        if self.resized_crop and draws is not None:
            return random_box(width, height, draws)
        return (0, 0, width, height) if self.squash else center_box(width, height)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Return ``image`` with 8 bits per channel; 16-bit grey values keep their upper bits, which PIL would clip.

    Raises:
        ValueError: for pixel values whose range is unknown.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in WIDE_GREY):
        bits = image.tag_v2.get(BITS_PER_SAMPLE, (16,))[0] if isinstance(image, TiffImageFile) else 16
        return Image.fromarray((np.asarray(image) >> (bits - 8)).astype(np.uint8))
    if image.mode in {"I", "F"}:
        raise ValueError(f"the range of its values (mode {image.mode}) is unknown")
    return image


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__


def center_box(width: int, height: int) -> Box:
    """Return the central square of the validation crop."""
    edge = CENTRE * min(width, height)
    left, upper = (width - edge) / 2, (height - edge) / 2
    return left, upper, left + edge, upper + edge


def random_box(width: int, height: int, draws: Draws) -> Box:
    """Return a box of 8-100 % of the area and an aspect ratio of 3/4-4/3, within the image, in pixels.

    The ranges are those of C. Szegedy et al., Going deeper with convolutions, 2015. An edge longer than the image's is
    cut to it instead of drawn again: a fixed number of draws per sample keeps augmentation reproducible.
    """
    area = (0.08 + 0.92 * float(draws[0])) * width * height
    ratio = math.exp((2 * float(draws[1]) - 1) * math.log(4 / 3))
    box_width = min(width, math.sqrt(area * ratio))
    box_height = min(height, math.sqrt(area / ratio))
    upper = float(draws[2]) * (height - box_height)
    left = float(draws[3]) * (width - box_width)
    return left, upper, left + box_width, upper + box_height


def imagefolder(config: DataConfig) -> Splits:
    """Return ``data_dir``/train and ``data_dir``/val, or ``data_dir`` itself split by ``val_fraction``.

    Raises:
        ConfigError: if the folder or archive is missing or has no images, or if the splits' classes differ.
    """
    tree = open_tree(Path(config.data_dir))
    if tree.has_folder("train") or tree.has_folder("val"):
        train, validation = tree.scan("train"), tree.scan("val")
        _log_skipped(config, tree)
        if differing := set(train.classes) ^ set(validation.classes):
            raise ConfigError(
                "classes-differ",
                f"{config.data_dir}: train/ and val/ must hold the same classes, but these are in only one of them: "
                f"{', '.join(sorted(differing))}.",
            )
        return _splits(config, train, validation)
    whole = tree.scan("")
    _log_skipped(config, tree)
    folders = [f"{config.data_dir}/{name}" for name in whole.classes]
    parts = stratified_split(whole.labels, fraction=config.val_fraction, seed=config.split_seed, names=folders)
    train, validation = (whole._replace(numbers=whole.numbers[ids.numpy()], labels=whole.labels[ids]) for ids in parts)
    return _splits(config, train, validation)


def _log_skipped(config: DataConfig, tree: Tree) -> None:
    if text := skipped_message(tree.left_out):
        log.info("%s: %s", config.data_dir, text)


def _splits(config: DataConfig, train: Scanned, validation: Scanned) -> Splits:
    if config.decoder == "simplejpeg" and not find_spec("simplejpeg"):
        raise ConfigError(
            "missing-package",
            f"--decoder simplejpeg: this Python ({sys.executable}) lacks simplejpeg: install it with pip.",
        )
    statistics = IMAGENET if config.normalise else PLAIN
    prepared = (config.image_size, statistics, config.resize == "squash")
    most = config.max_image_pixels
    return Splits(
        ImageFolder(
            *train,
            *prepared,
            resized_crop=config.resized_crop,
            flip=config.flip,
            max_pixels=most,
            decoder=config.decoder,
        ),
        ImageFolder(*validation, *prepared, max_pixels=most),
    )
