"""JPEG decoder for training images: libjpeg-turbo (simplejpeg) decodes and torch resizes, faster than PIL.

Most of the time goes into the Huffman code, which must be read from the start, so rows below the cropped box are not
decoded. Pixels differ from PIL's by a few of 255, because the cosine transform and the color upsampling are the fast
variants, and the box begins and ends at whole pixels. PIL decodes validation images.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import BinaryIO

import torch
import torch.nn.functional as F
from torch import Tensor

START, END = b"\xff\xd8\xff", b"\xff\xd9"
"""First and last bytes of a JPEG file (ITU-T T.81, B.1.1.3)."""
PADDING = 1024
"""Most bytes that some programs write after the end."""
BASELINE = {0xC0, 0xC1}
"""Markers of frame headers of sequential images, coded from top to bottom (B.1.1.3)."""
HEADER = 7
"""Bytes from the start of such a marker to the end of the number of rows, its last two bytes (B.2.2)."""
FILL = 0xFF
"""First byte of a marker; any number of fill bytes with this value may precede a marker (B.1.1.2)."""
SCAN = 0xDA
"""Marker of a scan, which follows the frame header; in a progressive image no BASELINE marker precedes it."""
BLOCK = 32
"""The decoder reads a multiple of this number of rows, because blocks have 8 or 16 rows, at all scales."""
LARGEST = 1 << 28
"""Most bytes to read from a file; an image that is cut off there is left to PIL."""
COLOURS = {"YCbCr", "RGB", "Gray"}
"""Color spaces that libjpeg-turbo converts to RGB; images for print use others."""
SCALES = (8, 4, 2)
"""Factors by which libjpeg-turbo reduces an image's edges at almost no cost."""
Box = tuple[float, float, float, float]
"""Left, upper, right, lower, in pixels."""
BoxOf = Callable[[int, int], Box]
"""Maps an image's width and height to the box to crop."""


def decode_jpeg(file: BinaryIO, size: int, box_of: BoxOf) -> Tensor | None:
    """Return the box of an image, resized, as uint8 [3, size, size].

    Return None if the file is not a JPEG file, or if libjpeg-turbo cannot decode it.
    """
    import simplejpeg  # noqa: PLC0415 -- an optional package

    if file.read(len(START)) != START:
        return None
    length = min(file.seek(0, os.SEEK_END), LARGEST)
    file.seek(0)
    data = file.read(length)
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if colours not in COLOURS:
            return None
        left, upper, right, lower = box_of(width, height)
        scale = next((scale for scale in SCALES if min(right - left, lower - upper) >= scale * size), 1)
        rows = min(height, math.ceil(lower / BLOCK) * BLOCK)
        start = with_rows(data, rows) if rows < height else None
        pixels = simplejpeg.decode_jpeg(
            start or data,
            fastdct=True,
            fastupsample=True,
            min_height=math.ceil((rows if start else height) / scale),
            min_width=math.ceil(width / scale),
            min_factor=scale,
            strict=start is None,  # strict decoding would fail on the data after the last row
        )
    except ValueError:
        return None
    upper, lower, left, right = (edge / scale for edge in (upper, lower, left, right))
    crop = torch.from_numpy(pixels)[int(upper) : math.ceil(lower), int(left) : math.ceil(right)]
    return F.interpolate(crop.permute(2, 0, 1)[None], size=(size, size), mode="bilinear", antialias=True)[0]


def with_rows(data: bytes, rows: int) -> bytearray | None:
    """Return a copy of a JPEG file with ``rows`` rows in its header, so that the decoder stops after them.

    Return None if the file may be incomplete, or is not coded from top to bottom.
    """
    position = len(START) - 1
    while position + HEADER <= len(data) and data[position] == FILL:
        marker = data[position + 1]
        if marker in BASELINE and END in data[max(position, len(data) - PADDING) :]:
            changed = bytearray(data)
            changed[position + 5 : position + 7] = rows.to_bytes(2, "big")
            return changed
        if marker in BASELINE or marker == SCAN:
            return None
        position += 1 if marker == FILL else 2 + int.from_bytes(data[position + 2 : position + 4], "big")
    return None
