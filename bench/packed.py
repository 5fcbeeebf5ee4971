"""``python bench/packed.py [--rounds N] [--folder DIR]``: photographs that do not fit into memory, read by two ranks.

20,000 JPEG files of 110 kB in a folder, in a ZIP archive of ``trainer pack``, and in tars of 1,000 for WebDataset, are
each read in random order by two processes (WebDataset: tars in random order, through a buffer of 1,000 samples), which
decode a random part of each image to 224 x 224 pixels. The processes are in a control group of 1 GiB, to which the page
cache counts; no page of the files is in memory when they begin. Needs root, for the group, and 8 GB on a disk.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import images
import numpy as np

COUNT, DIFFERENT, PER_TAR, RANKS = 20_000, 320, 1000, 2
LIMIT = 1 << 30
CGROUPS = Path("/sys/fs/cgroup")
COMMENT = b"\xff\xfe\x00\x0a"
"""Marker and length of a JPEG comment of 8 bytes (ITU-T T.81, B.2.4.5)."""


def write_set(place: Path) -> None:
    """Write the photographs, no two of which are the same file, and the files that hold them."""
    images.write_photographs(place / "few", DIFFERENT)
    few = [path.read_bytes() for path in sorted((place / "few").rglob("*.jpg"))]
    for begin in range(0, COUNT, PER_TAR):
        with tarfile.open(place / f"{begin:06}.tar", "w") as tar:
            for number in range(begin, begin + PER_TAR):
                kind = number % images.CLASSES
                path = place / "photos" / f"class{kind}" / f"{number:06}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                data = few[number % DIFFERENT]
                path.write_bytes(data[:2] + COMMENT + b"%08d" % number + data[2:])
                tar.add(path, path.name)
                label = place / "label"
                label.write_text(str(kind), encoding="ascii")
                tar.add(label, path.with_suffix(".cls").name)
    pack = [sys.executable, "-m", "trainer", "pack", str(place / "photos"), str(place / "photos.zip")]
    subprocess.run(pack, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(place / "few")


def rank(name: str, place: Path, number: int, seed: int) -> int:
    """Read one rank's half of the set; return how many images that were."""
    if name == "WebDataset":
        import webdataset as wds  # type: ignore[import-not-found]

        tars = sorted(map(str, place.glob("*.tar")))
        mine = np.random.default_rng(seed).permutation(tars)[number::RANKS].tolist()
        samples = wds.WebDataset(mine, shardshuffle=False).shuffle(1000).decode("pil")
        pairs = samples.to_tuple("jpg", "cls").map_tuple(images.standard_transforms(), int)
        return sum(1 for _ in pairs)
    if name == "pytorch/examples":
        from torchvision import datasets

        dataset = datasets.ImageFolder(place / "photos", images.standard_transforms())
        return sum(1 for index in half(len(dataset), number, seed) if dataset[index])
    fetch, count = images.fetcher(place / ("photos.zip" if "packed" in name else "photos"), "simplejpeg")
    order = half(count, number, seed)
    return sum(fetch(order[begin : begin + images.BATCH]) for begin in range(0, len(order), images.BATCH))


def half(count: int, number: int, seed: int) -> list[int]:
    """Return what one rank reads of ``count`` samples in random order."""
    return np.random.default_rng(seed).permutation(count)[number::RANKS].tolist()


CONTENDERS = ["pytorch/examples", "WebDataset", "trainer", "trainer, packed"]


@contextlib.contextmanager
def group() -> Iterator[Path]:
    """Yield the file that takes the processes of a control group of LIMIT bytes."""
    old = CGROUPS / "memory"
    folder = (old if old.is_dir() else CGROUPS) / f"slipway-bench-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")).write_text(str(LIMIT))
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


def forget(place: Path) -> None:
    """Drop the pages of all files from memory."""
    os.sync()
    for path in place.rglob("*.*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(name: str, place: Path, seed: int) -> tuple[float, float]:
    """Return the seconds by the clock and of CPU that both ranks take together."""
    forget(place)
    began = time.monotonic()
    with group() as procs:
        command = [sys.executable, __file__, "--contender", name, "--folder", str(place), "--seed", str(seed), "--rank"]
        ranks = [
            subprocess.Popen([*command, str(number)], preexec_fn=lambda: procs.write_text(str(os.getpid())))  # noqa: PLW1509
            for number in range(RANKS)
        ]
        ended = [os.wait4(process.pid, 0) for process in ranks]
    if any(status for _, status, _ in ended):
        sys.exit(f"{name} failed")
    return time.monotonic() - began, sum(used.ru_utime + used.ru_stime for *_, used in ended)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be measured; by default, that of TMPDIR")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        if (read := rank(arguments.contender, arguments.folder, arguments.rank, arguments.seed)) < 0.98 * COUNT / RANKS:
            sys.exit(f"{arguments.contender} read {read} images only")
        return
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    os.environ["PYTHONPATH"] = ":".join(filter(None, (os.environ.get("PYTHONPATH"), str(images.peers()))))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        write_set(Path(folder))
        print("the set is written", file=sys.stderr)
        for number in range(arguments.rounds):
            for name, values in found.items():
                values.append(measure(name, Path(folder), number))
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    print(f"{COUNT:,} images by {RANKS} ranks, medians of {arguments.rounds} rounds; least and most in brackets")
    print("| | seconds | CPU seconds |\n|---|---|---|")
    for name, values in found.items():
        cells = [f"{statistics.median(of):.1f} ({min(of):.1f}-{max(of):.1f})" for of in zip(*values, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
