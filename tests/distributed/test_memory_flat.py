"""Memory of ranks and of their loader workers does not grow, however long they train."""

import re
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest
from PIL import Image

from support import last_step, launch_words, started

STEPS, EPOCH = 10_000, 250
BATCH = 4
GROWTH = 0.02
"""Of what a process has after a fifth of the steps: 10,000 steps that each kept a kB would be 10 MB of 300 MB."""
CONFIG = """
[data]
dataset = "imagefolder"
image_size = 16
resized_crop = true
flip = true
workers = 1
[model]
arch = "mlp"
[train]
epochs = 1000
max_steps = {steps}
batch_size = {batch}
[run]
log_interval = 10
figures = false
checkpoint_interval = 100
"""


def own_kilobytes(pid):
    """Return the memory that is the process's alone; None once it has ended."""
    try:
        found = dict(
            re.findall(r"^(\w+): +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), flags=re.MULTILINE)
        )
    except OSError:
        return None
    return int(found["Private_Dirty"])


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_memory_is_flat_over_ten_thousand_steps(tmp_path, table):
    images = tmp_path / "images"
    for number in range(EPOCH * BATCH):
        for part in ("train", "val") if number < 2 * BATCH else ("train",):
            path = images / part / f"class {number % 2}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20 + number % 9, 24), (number % 256, 90, 30)).save(path)
    config, out = tmp_path / "flat.toml", tmp_path / "run"
    config.write_text(CONFIG.format(steps=STEPS, batch=BATCH))
    words = [*launch_words("torchrun", 2), str(config), "--data-dir", str(images), "--output-dir", str(out)]
    early, late = defaultdict(list), defaultdict(list)
    with started(words, tmp_path / "log") as launch:
        while launch.process.poll() is None:
            step = last_step(out)
            into = early if 0.2 <= step / STEPS < 0.4 else late if step / STEPS >= 0.8 else None
            for pid in launch.pids() if into is not None else ():
                if found := own_kilobytes(pid):
                    into[pid].append(found)
            time.sleep(0.5)
        assert launch.wait() == 0, launch.output
    assert last_step(out) == STEPS
    both = [pid for pid in early if len(late[pid]) > 5]
    assert len(both) == 1 + 2 + 2 * 2, "torchrun, two ranks, and for each a worker for training and one for validation"
    rows = [(early[pid], late[pid]) for pid in both]
    medians = [(median(before), median(after)) for before, after in rows]
    table(
        "memory over 10,000 steps, kB",
        [(f"{before:.0f}", f"{after:.0f}", f"{after / before - 1:+.2%}") for before, after in medians],
    )
    assert all(after <= (1 + GROWTH) * before for before, after in medians), medians
