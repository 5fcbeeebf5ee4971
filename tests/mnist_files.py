"""A data set in the files of MNIST, which torchvision reads as its own."""

import struct

import numpy as np


def write_mnist(folder, *, train, test):
    """Write so many images, each a bar whose height is its label, into ``folder``/MNIST/raw, and return that."""
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
    """Write ``values`` as uint8: two zeros, the type 8, the dimensions, their sizes, the values."""
    header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    path.write_bytes(header + values.astype(np.uint8).tobytes())
