"""Advice of ``trainer report`` on studies of real runs with one planted bottleneck or none."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusters import EXPORTED, until
from report_page import Page

BOTTLENECKS = Path(__file__).parent / "foreign" / "bottlenecks.py"
WAITS, SPEAKS, NOTHING = "waits for data:", "is communication", "No bottleneck"
FEW, MANY = ["--arch", "bottlenecks:few_weights"], ["--arch", "bottlenecks:many_weights"]
FAST, SLOW, SLOWER = (["--dataset", f"bottlenecks:{name}"] for name in ("images", "slow", "slower"))
CASES = {
    # name: trainer flags, samples per step and rank, bit/s of a node's network, expected advice
    "nothing, 32 images": ([*FEW, *FAST], 32, None, NOTHING),
    "nothing, 128 images": ([*FEW, *FAST], 128, None, NOTHING),
    "nothing, many weights": ([*MANY, *FAST], 32, None, NOTHING),
    "many weights, 300 Mbit/s": ([*MANY, *FAST], 32, "300mbit", SPEAKS),
    "many weights, 100 Mbit/s": ([*MANY, *FAST], 64, "100mbit", SPEAKS),
    "mlp, 50 Mbit/s": (["--arch", "mlp", *FAST], 64, "50mbit", SPEAKS),
    "a hook that sleeps": (["--arch", "bottlenecks:waits_for_others", *FAST], 32, None, SPEAKS),
    "4 ms a sample": ([*FEW, *SLOW], 64, None, WAITS),
    "8 ms a sample": ([*MANY, *SLOWER], 64, None, WAITS),
    "1 ms a sample, without a worker": ([*FEW, "--dataset", "bottlenecks:slow_in_memory"], 64, None, WAITS),
}
pytestmark = pytest.mark.prove


@pytest.fixture
def cable(cluster):
    """Return a function that slows the network of both nodes."""

    def slow(rate):
        for node in ("node1", "node2"):
            limit = ["rate", rate, "burst", "100k", "latency", "50ms"]
            cluster.control("on", node, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *limit)

    yield slow
    for node in ("node1", "node2"):
        cluster.control("on", node, "sh", "-c", "tc qdisc delete dev eth0 root 2>/dev/null || :")


@pytest.mark.parametrize("case", CASES)
def test_report_advice_identifies_bottleneck_of_study(cluster, tmp_path, table, cable, case):
    """One rank, then one on each of two nodes, with the same batch size per rank."""
    flags, batch, rate, expected = CASES[case]
    shutil.copy(BOTTLENECKS, tmp_path)
    if rate:
        cable(rate)

    def shown():
        return cluster.jobgen("status", "study", folder=tmp_path)

    for ranks in ("1", "1,2"):  # one job after the other
        words = ["study", "ddp", "--site", "example", "--set", "gpus_per_node=1", "--output", "study", "--cpus", "1"]
        words += ["--ranks", ranks, "--scaling", "weak", "--batch", str(batch), "--steps", "40"]
        trained = [*flags, "--no-figures", "--log-interval", "10", "--epochs", "999"]
        cluster.jobgen(*words, "--", *trained, folder=tmp_path, **EXPORTED)
        until(lambda: not re.search(r" (waiting|running) ", shown()), limit=150, pause=1)
        assert not re.search(r" (waiting|running|failed) ", shown())
    page = tmp_path / "report.html"
    subprocess.run([sys.executable, "-m", "trainer", "report", tmp_path / "study", "--output", page], check=True)
    said = re.search(r'<p class="advice">(.*?)</p>', Page(page).source)[1].replace("<br>", "\n").splitlines()
    table(f"advice: {case}", [[line] for line in said])
    of_two = [line for line in said if "ranks2" in line and not line.startswith("Take")]
    assert len(of_two) == 1
    assert [what for what in (WAITS, SPEAKS, NOTHING) if what in of_two[0]] == [expected]
