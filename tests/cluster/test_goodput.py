"""Goodput against a stopwatch, over a run with three faults."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from clusters import rendered, until
from slipway.base.goodput import (
    EVALUATED,
    LOST,
    SAVED,
    STARTED,
    TRAINED,
    WAITED,
    describe,
    read_goodput,
    seconds_by_part,
)

PROGRAM = Path(__file__).parent / "foreign" / "slow_steps.py"
SETTINGS = {"SLIPWAY_SCRIPT": str(PROGRAM), "SLIPWAY_MAX_RESTARTS": "5", "SLIPWAY_RANKS_PER_NODE": "1"}
BEGINS = {"opened": STARTED, "training": TRAINED, "evaluation": EVALUATED, "closed": STARTED}
"""The part that starts at each of the program's records."""
ACCURACY = 0.005
"""Share of the total time by which the parts may differ."""


class Stopwatch:
    """Polls a job and its run folder a hundred times per second and records the times of events."""

    def __init__(self, job, out):
        self.job, self.out = job, out
        self.ends, self.saves = [], []
        """Seconds since 1970: the beginning of the job, and the end of each attempt; and each save."""
        self._latest = None

    def until(self, condition, limit=200):
        """Poll until ``condition`` holds."""

        def looked():
            self._look()
            return condition()

        assert until(looked, limit=limit, pause=0.01) is not None, self.job.output

    def _look(self):
        ends = self.job.log.exists() + self.job.output.count(": used ")
        self.ends += [time.time()] * (ends - len(self.ends))
        link = self.out / "checkpoints" / "latest"
        if link.is_symlink() and (latest := link.readlink()) != self._latest:
            self._latest = latest
            self.saves.append(time.time())


def parts(notes, ends, saves):
    """Return the measured seconds of each part."""
    sums = dict.fromkeys((STARTED, TRAINED, EVALUATED, LOST), 0.0)
    for began, ended in pairwise(ends):
        edges = [(moment, BEGINS[what]) for what, moment in notes if began < moment < ended]
        opened = edges[0][0] if edges else began
        kept = ended if ended == ends[-1] else max([opened, *(save for save in saves if began < save < ended)])
        for (since, part), (end, _) in pairwise([(began, STARTED), *edges, (ended, "")]):
            sums[part] += max(0, min(end, kept) - since)
            sums[LOST] += max(0, end - max(since, kept))
    return sums


@pytest.mark.prove
def test_goodput_agrees_with_stopwatch_over_three_faults(cluster_with_spare, tmp_path, table):
    cluster, notes, out = cluster_with_spare, tmp_path / "notes", tmp_path / "run"
    script = rendered(tmp_path, "ddp", "example", "spares=1")
    job = cluster.submit(script, out=out, STOPWATCH=str(notes), **SETTINGS)
    watch = Stopwatch(job, out)

    def saved_twice_more():
        wanted = len(watch.saves) + 2
        watch.until(lambda: len(watch.saves) >= wanted)
        later = time.time() + 3  # in the next epoch, far from a save
        watch.until(lambda: time.time() > later)

    def kill(node, *pattern):
        cluster.control("on", node, "pkill", "-KILL", *pattern)

    saved_twice_more()
    kill("node2", "--exact", "--oldest", "python")
    watch.until(lambda: " restart 1 " in job.output)
    restarted = time.time() + 2
    watch.until(lambda: time.time() > restarted)
    kill("node1", "--oldest", "--full", "^srun --nodes=2")  # as the ranks start
    watch.until(lambda: " restart 2 " in job.output)
    saved_twice_more()
    cluster.control("kill", "node3")
    watch.until(lambda: " restart 3 " in job.output)
    saved_twice_more()
    watch.until(lambda: len(watch.ends) == 5, limit=400)
    job.ends()
    cluster.control("boot", "node3")
    attempts = read_goodput(out / "goodput.jsonl")
    ledger = seconds_by_part(attempts)
    lines = [line.split() for line in notes.read_text().splitlines()]
    measured = parts([(what, float(moment)) for what, moment in lines], watch.ends, watch.saves)
    total = watch.ends[-1] - watch.ends[0]
    # the program cannot distinguish a save in its loop, or a wait for data, from a step
    ledger[TRAINED] += ledger.pop(SAVED) + ledger.pop(WAITED)
    errors = {name: ledger[name] - measured[name] for name in measured}
    rows = [(name, f"{measured[name]:.1f} s", f"{ledger[name]:.1f} s", f"{errors[name]:+.2f} s") for name in measured]
    error = max(abs(sum(ledger.values()) - total), *map(abs, errors.values())) / total
    table(
        "stopwatch, goodput.jsonl",
        [*rows, ("total", f"{total:.1f} s", f"{sum(ledger.values()):.1f} s", f"{error:.2%}")],
    )
    assert error <= ACCURACY, describe(attempts)
