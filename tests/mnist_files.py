"""Writes a synthetic data set in MNIST's file format, which torchvision reads."""

import struct

import numpy as np


def write_mnist(folder, *, train, test):
    """Write ``train`` and ``test`` images of bars, placed by label, to ``folder``/MNIST/raw, and return that path."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in {"train": train, "t10k": test}.items():
        labels = np.arange(count) % 10
        images = np.zeros((count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 8, 8:20] = 255
        _write_idx(raw / f"{part}-images-idx3-ubyte", images)
        _write_idx(raw / f"{part}-labels-idx1-ubyte", labels)
    return raw


def _write_idx(path, values):
    """Write ``values`` as uint8: two zeros, type 8, number of dimensions, their sizes, values."""
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + values.astype(np.uint8).tobytes())
