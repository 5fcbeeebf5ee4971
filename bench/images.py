"""``python bench/images.py [--rounds N]``: time decoding photographs to 224-pixel crops, on one core, in memory.

Each contender is a separate process. It reads all JPEG files of a folder, or of a file that holds them, in random
order, decodes a random part of each image, resizes and mirrors it, and forms batches of 32. Files are in the page
cache; the process's CPU time is measured. spdl, opencv-python-headless, webdataset and FFCV are installed into separate
folders. spdl needs the libraries of FFmpeg, and FFCV is compiled against those of OpenCV: without these they are
skipped.

The photographs are noise with the spectrum of natural images: 500 x 375 pixels, 110 kB, about the means of ImageNet.
"""

from __future__ import annotations

import argparse
import ctypes.util
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ffcv_peer
import numpy as np
import peers
from comparison import Comparison, Cost, compare, show, timed
from numpy.typing import NDArray
from PIL import Image

if TYPE_CHECKING:
    from torch.utils.data import Dataset

PEERS = [
    "spdl_core==0.8.0",
    "spdl_io==0.8.0",
    "opencv-python-headless==5.0.0.93",
    "webdataset==1.0.2",
    "braceexpand==0.1.7",
]
COUNT, CLASSES = 320, 4
BATCH, SIZE = ffcv_peer.BATCH, ffcv_peer.SIZE
SHORTER_SIDE = 256
Pixels = NDArray[np.uint8]
Pass = Callable[[], int]
"""Processes all images once, and returns their number."""


def photograph(height: int, width: int, generator: np.random.Generator) -> Image.Image:
    """Return mostly gray noise whose amplitudes fall with the frequency, as in natural images."""
    frequencies = np.hypot(np.fft.fftfreq(height)[:, None] * height, np.fft.rfftfreq(width)[None] * width)
    frequencies[0, 0] = 1
    planes = []
    for _ in range(4):
        phases = np.exp(2j * np.pi * generator.random(frequencies.shape))
        plane = np.fft.irfft2(phases / frequencies**1.2, (height, width))
        planes.append((plane - plane.mean()) / plane.std())
    colours = [0.9 * planes[0] + 0.1 * plane for plane in planes[1:]]
    return Image.fromarray(np.clip(127 + 50 * np.stack(colours, -1), 0, 255).astype(np.uint8))


def write_photographs(folder: Path, count: int, *, height: int = 375, width: int = 500) -> None:
    """Write ``count`` JPEG files, in a folder for each class."""
    generator = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"class{number % CLASSES}" / f"{number:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(height, width, generator).save(path, quality=94)


def examples(place: Path) -> Pass:
    """Load images as the training of pytorch/examples' imagenet/main.py does."""
    from torchvision import datasets

    return over(datasets.ImageFolder(place / "photos", standard_transforms()))


def script(place: Path) -> Pass:
    """Load images the same, from ``slipway.PackedImages``."""
    from slipway import PackedImages

    return over(PackedImages(place / "photos.zip", transform=standard_transforms()))


def standard_transforms() -> Callable[[Image.Image], object]:
    """Return the transforms of pytorch/examples."""
    from torchvision import transforms

    normalise = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalise]
    return transforms.Compose(steps)


def over(dataset: Dataset[Any]) -> Pass:
    """Return a pass over a data set with a DataLoader without workers."""
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    return lambda: sum(len(images) for images, _ in loader)


def webdataset(place: Path) -> Pass:
    """Read a tar from its start, through a shuffle buffer of 1,000 samples; decode as pytorch/examples does."""
    import webdataset as wds  # type: ignore[import-not-found]

    samples = wds.WebDataset(str(place / "photos.tar"), shardshuffle=False).shuffle(1000).decode("pil")
    transform = standard_transforms()
    pairs = samples.to_tuple("jpg", "cls").map_tuple(transform, lambda label: label)
    return lambda: sum(len(images) for images, _ in pairs.batched(BATCH))


def opencv(place: Path) -> Pass:
    """Decode, crop, resize by area and mirror, as uint8."""
    import cv2  # type: ignore[import-not-found]

    cv2.setNumThreads(1)

    def read(data: bytes) -> Pixels:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        left, upper, width, height = box(image.shape[1], image.shape[0])
        crop = cv2.resize(
            image[upper : upper + height, left : left + width], (SIZE, SIZE), interpolation=cv2.INTER_AREA
        )
        return cv2.flip(crop, 1) if random.getrandbits(1) else crop

    return lambda: sum(len(np.stack(batch)) for batch in batches(place, read))


def spdl(place: Path) -> Pass:
    """Decode, crop, resize and mirror with FFmpeg, as uint8."""
    import spdl.io

    config = spdl.io.decode_config(decoder_options={"threads": "1"})

    def read(data: bytes) -> Pixels:
        left, upper, width, height = box(500, 375)
        mirror = ",hflip" if random.getrandbits(1) else ""
        steps = f"crop={width}:{height}:{left}:{upper},scale={SIZE}:{SIZE}{mirror},format=pix_fmts=rgb24"
        image = spdl.io.load_image(data, decode_config=config, filter_desc=steps)
        return spdl.io.to_numpy(image)

    return lambda: sum(len(np.stack(batch)) for batch in batches(place, read))


def box(width: int, height: int) -> tuple[int, int, int, int]:
    """Return left, upper, width and height of a random crop, drawn as in the trainer."""
    from trainer.data.sets.imagefolder import random_box

    left, upper, right, lower = map(
        int, random_box(width, height, np.array([random.random() for _ in range(5)], dtype=np.float32))
    )
    return left, upper, right - left, lower - upper


def batches(place: Path, read: Callable[[bytes], Pixels]) -> Iterator[list[Pixels]]:
    """Yield batches of all files in random order."""
    paths = list((place / "photos").rglob("*.jpg"))
    random.shuffle(paths)
    for begin in range(0, len(paths), BATCH):
        yield [read(path.read_bytes()) for path in paths[begin : begin + BATCH]]


def fetcher(data: Path, decoder: str) -> tuple[Callable[[Sequence[int]], int], int]:
    """Return a function that fetches samples like the trainer and returns their count; and the number of samples."""
    from trainer.config.settings import DataConfig
    from trainer.data.sets import open_data

    config = DataConfig(
        dataset="imagefolder",
        data_dir=str(data),
        image_size=SIZE,
        resized_crop=True,
        flip=True,
        val_fraction=0.0125,
        decoder=decoder,  # type: ignore[arg-type]
    )
    train = open_data(config).train
    generator = np.random.default_rng(0)

    def fetch(numbers: Sequence[int]) -> int:
        draws = generator.random((len(numbers), train.draws), dtype=np.float32)
        fetched = train.fetch(np.asarray(numbers), draws)
        if fetched.bad:
            sys.exit(f"not all images could be decoded: {fetched.reasons}")
        return len(fetched.images)

    return fetch, len(train)


def trainer(name: str, decoder: str) -> Callable[[Path], Pass]:
    """Return a contender: the trainer on the set called ``name``."""

    def contender(place: Path) -> Pass:
        fetch, count = fetcher(place / name, decoder)

        def once() -> int:
            order = random.sample(range(count), count)
            return sum(fetch(order[begin : begin + BATCH]) for begin in range(0, count, BATCH))

        return once

    return contender


def ffcv(place: Path) -> Pass:
    """Read FFCV's own file; FFCV compiles its functions in the first pass."""
    loader = ffcv_peer.loader(place, in_memory=True)
    return lambda: ffcv_peer.count(loader)


CONTENDERS = {
    "pytorch/examples": examples,
    "WebDataset": webdataset,
    "FFCV": ffcv,
    "OpenCV": opencv,
    "spdl": spdl,
    "trainer --decoder pil": trainer("photos", "pil"),
    "trainer": trainer("photos", "simplejpeg"),
    "trainer, packed": trainer("photos.zip", "simplejpeg"),
    f"trainer, packed with --shorter-side {SHORTER_SIDE}": trainer("small.zip", "simplejpeg"),
    "slipway.PackedImages": script,
}
AIMS = {"trainer": 2.8, f"trainer, packed with --shorter-side {SHORTER_SIDE}": 4}


def run_contender(name: str, place: Path) -> None:
    """Print the CPU time and the wall-clock time per image in microseconds, as JSON."""
    import torch

    torch.set_num_threads(1)
    once = CONTENDERS[name](place)
    count = once()  # imports everything and fills the page cache
    cost = timed(once)
    print(json.dumps([1e6 * cost.value / count, 1e6 * (cost.clock or 0) / count]))


def prepare(place: Path) -> None:
    """Write the photographs, and the files that hold them."""
    write_photographs(place / "photos", COUNT)
    for name, flags in (("photos.zip", []), ("small.zip", ["--shorter-side", str(SHORTER_SIDE)])):
        pack = [sys.executable, "-m", "trainer", "pack", str(place / "photos"), str(place / name), *flags]
        subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
    paths = sorted((place / "photos").rglob("*.jpg"))
    with tarfile.open(place / "photos.tar", "w") as tar:
        for path in paths:
            tar.add(path, path.name)
            label = path.with_suffix(".cls")
            label.write_text(path.parent.name.removeprefix("class"), encoding="ascii")
            tar.add(label, label.name)
            label.unlink()


def comparisons(rounds: int = 7) -> list[Comparison]:
    """Compare all contenders that can be installed."""
    compiled = ffcv_peer.installed()
    environment = peers.environment(peers.installed(PEERS), compiled)
    left_out = {*([] if has_ffmpeg() else ["spdl"]), *([] if compiled else ["FFCV"])}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        if compiled:
            ffcv_peer.write(Path(folder), environment)

        def turn(name: str) -> Cost:
            command = [sys.executable, __file__, "--contender", name, "--place", folder]
            return Cost(*json.loads(subprocess.check_output(command, text=True, env=os.environ | environment)))

        turns = {name: partial(turn, name) for name in CONTENDERS if name not in left_out}
        return [compare("photographs to crops of 224", turns, rounds=rounds, unit="µs of CPU an image", aims=AIMS)]


def has_ffmpeg() -> bool:
    """Return whether the libraries that spdl needs are installed."""
    if ctypes.util.find_library("avcodec"):
        return True
    print("skipping spdl: it needs the libraries of FFmpeg, for example from the package ffmpeg", file=sys.stderr)
    return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        run_contender(arguments.contender, arguments.place)
    else:
        show(comparisons(arguments.rounds))
