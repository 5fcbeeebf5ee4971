"""``python bench/packed.py [--rounds N] [--gib N]``: two ranks read photographs that do not fit into memory.

Two processes read 20,000 JPEG files of 110 kB in random order, from a folder, a ZIP archive of ``trainer pack``, tars
of 1,000 for WebDataset, or a file of FFCV. They decode a random part of each image to 224 x 224 pixels. WebDataset
reads tars in random order, through a buffer of 1,000 samples. FFCV uses its order for sets larger than memory, after it
has compiled its functions. The processes are in a control group of 1 GiB, which includes the page cache. No page of the
files is in memory when they start. Needs root, for the group, and 11 GB on a disk; --gib N multiplies all sizes by N.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import ffcv_peer
import images
import numpy as np
import peers
from comparison import Comparison, Cost, compare, show

PER_GIB, DIFFERENT, PER_TAR, RANKS = 20_000, 320, 1000, 2
FFCV = "FFCV"
CGROUPS = Path("/sys/fs/cgroup")
COMMENT = b"\xff\xfe\x00\x0a"
"""Marker and length of a JPEG comment of 8 bytes (ITU-T T.81, B.2.4.5)."""


def write_set(place: Path, count: int) -> None:
    """Write the photographs, all different files, and the archives that hold them."""
    images.write_photographs(place / "few", DIFFERENT)
    few = [path.read_bytes() for path in sorted((place / "few").rglob("*.jpg"))]
    for begin in range(0, count, PER_TAR):
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


def rank(name: str, place: Path, number: int) -> int:
    """Read one rank's half of the set; return its number of images."""
    if name == "WebDataset":
        import webdataset as wds  # type: ignore[import-not-found]

        tars = sorted(map(str, place.glob("*.tar")))
        mine = np.random.default_rng(0).permutation(tars)[number::RANKS].tolist()
        samples = wds.WebDataset(mine, shardshuffle=False).shuffle(1000).decode("pil")
        pairs = samples.to_tuple("jpg", "cls").map_tuple(images.standard_transforms(), int)
        return sum(1 for _ in pairs)
    if name == FFCV:
        return ffcv_peer.count(ffcv_peer.loader(place, half(count_of(place), number), in_memory=False))
    if name == "pytorch/examples":
        from torchvision import datasets

        dataset = datasets.ImageFolder(place / "photos", images.standard_transforms())
        return sum(1 for index in half(len(dataset), number) if dataset[index])
    fetch, count = images.fetcher(place / ("photos.zip" if "packed" in name else "photos"), "simplejpeg")
    order = half(count, number)
    return sum(fetch(order[begin : begin + images.BATCH]) for begin in range(0, len(order), images.BATCH))


def count_of(place: Path) -> int:
    """Return the number of photographs in ``place``."""
    return PER_TAR * len(list(place.glob("*.tar")))


def half(count: int, number: int) -> list[int]:
    """Return the indices that one rank reads of ``count`` samples, in random order."""
    return np.random.default_rng(0).permutation(count)[number::RANKS].tolist()


CONTENDERS = ["pytorch/examples", "WebDataset", "trainer", "trainer, packed"]


@contextlib.contextmanager
def group(gib: int) -> Iterator[Path]:
    """Create a control group of ``gib`` GiB and yield its cgroup.procs file."""
    old = CGROUPS / "memory"
    folder = (old if old.is_dir() else CGROUPS) / f"slipway-bench-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")).write_text(str(gib << 30))
        yield folder / "cgroup.procs"
    finally:
        folder.rmdir()


def forget(place: Path) -> None:
    """Drop the pages of all files from memory."""
    os.sync()
    for path in place.rglob("*.*"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(name: str, place: Path, environment: dict[str, str], gib: int) -> Cost:
    """Return the total cost of both ranks.

    Raises:
        MemoryError: if the kernel killed a rank.
    """
    forget(place)
    began = time.monotonic()
    with group(gib) as procs:
        command = [sys.executable, __file__, "--contender", name, "--folder", str(place), "--rank"]
        ranks = [
            subprocess.Popen(
                [*command, str(number)],
                env=os.environ | environment,
                preexec_fn=lambda: procs.write_text(str(os.getpid())),  # noqa: PLW1509 -- no thread is running
            )
            for number in range(RANKS)
        ]
        ended = [os.wait4(process.pid, 0) for process in ranks]
    clock = time.monotonic() - began
    codes = [os.waitstatus_to_exitcode(status) for _, status, _ in ended]
    if -signal.SIGKILL in codes:
        raise MemoryError(f"{name} needs more than {gib} GiB")
    if any(codes):
        sys.exit(f"{name} failed")
    return Cost(sum(used.ru_utime + used.ru_stime for *_, used in ended), clock)


def comparisons(rounds: int = 3, *, folder: Path | None = None, gib: int = 1) -> list[Comparison]:
    """Measure, in a new folder below ``folder``; by default that of TMPDIR."""
    compiled = ffcv_peer.installed()
    environment = peers.environment(peers.installed(images.PEERS), compiled)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        place = Path(temporary)
        write_set(place, PER_GIB * gib)
        names = list(CONTENDERS)
        if compiled:
            ffcv_peer.write(place, environment)
            try:
                measure(FFCV, place, environment, gib)
                names.append(FFCV)
            except MemoryError as error:
                print(f"{error}, and is skipped", file=sys.stderr)
        print("the set is written", file=sys.stderr)
        turns = {name: partial(measure, name, place, environment, gib) for name in names}
        return [compare(f"{PER_GIB * gib:,} cold photographs, two ranks in {gib} GiB", turns, rounds=rounds)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure; by default TMPDIR")
    parser.add_argument(
        "--gib", type=int, default=1, help="GiB of memory of the control group; the set is twice as large"
    )
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        read, count = rank(arguments.contender, arguments.folder, arguments.rank), count_of(arguments.folder)
        if read < 0.98 * count / RANKS:
            sys.exit(f"{arguments.contender} read only {read} images")
    else:
        show(comparisons(arguments.rounds, folder=arguments.folder, gib=arguments.gib))
