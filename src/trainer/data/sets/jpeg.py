"""JPEG files for training, decoded by libjpeg-turbo (simplejpeg) and resized by torch: faster than by PIL.

Most of that goes into the Huffman code, which can only be read from the start: no row is read that lies below the box
that is cropped. Pixels differ from PIL's by a few of 255: the cosine transform and the upsampling of colours are the
fast ones, and the box begins and ends at whole pixels. Validation images are PIL's.
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
"""With which a JPEG file begins, and ends (ITU-T T.81, B.1.1.3)."""
PADDING = 1024
"""Bytes that some programs write behind the end, at most."""
BASELINE = {0xC0, 0xC1}
"""Markers of the header of a frame that is coded from top to bottom (B.1.1.3)."""
HEADER = 7
"""Bytes from such a marker to the number of rows, which are the last two (B.2.2)."""
FILL = 0xFF
"""Begins a marker, and may stand before one any number of times (B.1.1.2)."""
SCAN = 0xDA
"""Marker that comes behind the header of the frame; a progressive image comes to it without one of BASELINE."""
BLOCK = 32
"""Rows of which a multiple is decoded: that of an image's blocks, which are of 8 or 16, at all scales."""
LARGEST = 1 << 28
"""Bytes of a file that are read, at most: what is cut off there is left to PIL."""
COLOURS = {"YCbCr", "RGB", "Gray"}
"""What libjpeg-turbo makes RGB of; prints have others."""
SCALES = (8, 4, 2)
"""By which it divides the edges of an image for next to nothing."""
Box = tuple[float, float, float, float]
"""Left, upper, right, lower, in pixels."""
BoxOf = Callable[[int, int], Box]
"""Returns which part of an image of some width and height is wanted."""


def decode_jpeg(file: BinaryIO, size: int, box_of: BoxOf) -> Tensor | None:
    """Return the wanted part of an image as uint8 [3, size, size].

    None is returned for what is no JPEG file, or one that libjpeg-turbo does not decode.
    """
    import simplejpeg  # noqa: PLC0415 -- only where images are decoded so

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
            strict=start is None,  # what stands behind the rows is warned of
        )
    except ValueError:
        return None
    upper, lower, left, right = (edge / scale for edge in (upper, lower, left, right))
    crop = torch.from_numpy(pixels)[int(upper) : math.ceil(lower), int(left) : math.ceil(right)]
    return F.interpolate(crop.permute(2, 0, 1)[None], size=(size, size), mode="bilinear", antialias=True)[0]


def with_rows(data: bytes, rows: int) -> bytearray | None:
    """Return a JPEG file whose header says that it has ``rows`` rows, as many as are decoded then.

    None is returned for one that may not be whole, or is not coded from top to bottom.
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
