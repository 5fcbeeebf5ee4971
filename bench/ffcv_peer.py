"""FFCV, which must be compiled, as a peer. ``python bench/ffcv_peer.py FOLDER`` packs FOLDER/photos into its file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import peers

PACKAGES = ["ffcv==1.0.2", "numba==0.68.1", "llvmlite==0.50.0"]
NEEDED = "a C++ compiler, pkg-config, OpenCV's and TurboJPEG's headers (libopencv-dev, libturbojpeg0-dev)"
BATCH, SIZE = 32, 224
FILE = "photos.beton"


def installed() -> str | None:
    """Return the folder with FFCV, compiled at the first call; None if a build requirement is missing."""
    if subprocess.run(["pkg-config", "--exists", "opencv4", "libturbojpeg"], check=False).returncode:
        print(f"skipping FFCV: it needs {NEEDED}", file=sys.stderr)
        return None
    return peers.installed(PACKAGES, "--no-build-isolation")


def write(place: Path, environment: Mapping[str, str]) -> None:
    """Write FFCV's file of the photographs in ``place``, in a process with FFCV in its ``environment``."""
    words = [sys.executable, __file__, str(place)]
    subprocess.run(words, check=True, env=os.environ | environment, stderr=subprocess.DEVNULL)


def loader(place: Path, indices: Sequence[int] | None = None, *, in_memory: bool) -> Any:
    """Return FFCV's loader of all photographs, or those of ``indices``, with its own random crops and flips.

    A set that is not in memory is read in FFCV's order for such sets. FFCV compiles functions in the first pass.
    """
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder  # type: ignore[import-not-found]
    from ffcv.loader import Loader, OrderOption  # type: ignore[import-not-found]
    from ffcv.transforms import RandomHorizontalFlip, ToTensor  # type: ignore[import-not-found]

    decoder = RandomResizedCropRGBImageDecoder((SIZE, SIZE))
    return Loader(
        str(place / FILE),
        batch_size=BATCH,
        num_workers=1,
        os_cache=in_memory,
        order=OrderOption.RANDOM if in_memory else OrderOption.QUASI_RANDOM,
        indices=indices,
        seed=0,
        drop_last=False,
        pipelines={"image": [decoder, RandomHorizontalFlip(), ToTensor()], "label": [IntDecoder(), ToTensor()]},
    )


def count(batches: Any) -> int:
    """Iterate over a loader and return its number of photographs."""
    return sum(len(images) for images, _ in batches)


if __name__ == "__main__":
    from ffcv.fields import IntField, RGBImageField  # type: ignore[import-not-found]
    from ffcv.writer import DatasetWriter  # type: ignore[import-not-found]
    from torchvision import datasets

    folder = Path(sys.argv[1])
    fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=94), "label": IntField()}
    writer = DatasetWriter(str(folder / FILE), fields, num_workers=2)
    writer.from_indexed_dataset(datasets.ImageFolder(folder / "photos"))
