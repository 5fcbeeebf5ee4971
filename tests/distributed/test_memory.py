"""The memory of ranks and of their loader workers while they train."""

import re
import time
from pathlib import Path

import numpy as np
import pytest

from support import last_step, training
from trainer.data.make import write_aerial

ENDS = (5_000, 15_000, 25_000)
"""Steps between which memory is measured; earlier steps allocate one-time memory. The median counts, because garbage
waits for collection, and rank 0 holds a checkpoint twice while it is written."""
GROWTH = 3 << 20
"""Bytes by which a process may grow: 315 per step. Without a known leak, medians differ by up to 1.8 MB."""
FLAGS = [
    *("--dataset", "imagefolder", "--image-size", "16", "--resized-crop", "--flip", "--workers", "1", "--arch", "mlp"),
    *("--batch-size", "4", "--epochs", "100000", "--log-interval", "100", "--no-figures"),
]


def resident(pid):
    """Return the memory of a process in bytes; private pages alone also grow when a fork's pages cease to be shared."""
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))[1]) << 10


@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_memory_does_not_grow_over_ten_thousand_steps(tmp_path, table):
    write_aerial(tmp_path / "photos", per_class=20, image_size=24, seed=0)
    out = tmp_path / "run"
    with training("spawn", 2, out, *FLAGS, "--data-dir", str(tmp_path / "photos")) as launch:
        launch.until(lambda: last_step(out) >= ENDS[0], f"step {ENDS[0]}", limit=400)
        pids = launch.pids()
        medians = []
        for end in ENDS[1:]:
            readings = []
            while last_step(out) < end:
                readings.append([resident(pid) for pid in pids])
                time.sleep(0.2)
            medians.append(np.median(readings, axis=0).astype(int))
        names = [Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() for pid in pids]
        launch.kill()
    grown = medians[1] - medians[0]
    table("memory", list(zip(names, (f"{size >> 20} MiB" for size in medians[1]), map(str, grown), strict=True)))
    assert len(names) == 7, "not the launcher, two ranks, and two loader workers of each"
    assert grown.max() < GROWTH
