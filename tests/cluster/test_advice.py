"""What ``trainer report`` advises on studies of real runs, into which a bottleneck was put, or none."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from report_page import Page

FOREIGN = Path(__file__).parent / "foreign"
JOBGEN = [sys.executable, "-m", "jobgen"]
SETTINGS = {
    "SLIPWAY_DEVICE": "cpu",
    "SLIPWAY_VENV": sys.prefix,
    "USE_CONTAINER": "0",
    "PYTHONPATH": str(FOREIGN),
}
WAITS, SPEAKS, NOTHING = "waits for data:", "is communication", "No bottleneck"
CNN, MLP, RESNET = (["--arch", name] for name in ("mnist-cnn", "mlp", "resnet18"))
FAST, SLOW = ["--dataset", "bottlenecks:images"], ["--dataset", "bottlenecks:slow"]
CASES = {
    # name: flags of the trainer, samples of a step on each rank, arguments of tc, what is to be said
    "nothing, mnist-cnn": ([*CNN, *FAST], 128, None, NOTHING),
    "nothing, mlp": ([*MLP, *FAST], 512, None, NOTHING),
    "nothing, resnet18": ([*RESNET, *FAST], 32, None, NOTHING),
    "delay of 10 ms": ([*CNN, *FAST], 32, "delay 10ms", SPEAKS),
    "delay of 30 ms": ([*MLP, *FAST], 64, "delay 30ms", SPEAKS),
    "100 Mbit/s": ([*CNN, *FAST], 32, "rate 100mbit", SPEAKS),
    "a hook that sleeps": (["--arch", "bottlenecks:waits_for_others", *FAST], 32, None, SPEAKS),
    "1 ms a sample": ([*CNN, *SLOW], 64, None, WAITS),
    "4 ms a sample": ([*CNN, "--dataset", "bottlenecks:slower"], 64, None, WAITS),
    "1 ms a sample, without a worker": ([*CNN, "--dataset", "bottlenecks:slow_in_memory"], 64, None, WAITS),
}
pytestmark = pytest.mark.prove


@pytest.fixture
def cable(cluster):
    """Return a function that makes both nodes' cables slow."""

    def slow(how):
        for node in ("node1", "node2"):
            cluster.control("on", node, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", *how.split())

    yield slow
    for node in ("node1", "node2"):
        cluster.control("on", node, "sh", "-c", "tc qdisc delete dev eth0 root 2>/dev/null || :")


@pytest.mark.timeout(400)
@pytest.mark.parametrize("case", CASES)
def test_the_bottleneck_of_a_study_is_named(cluster, tmp_path, table, cable, case):
    """One rank, then one on each of two nodes, with as large a batch each."""
    flags, batch, how, expected = CASES[case]
    if how:
        cable(how)

    def jobgen(*words):
        return cluster.run("env", f"--chdir={tmp_path}", *JOBGEN, *words, **SETTINGS)

    for ranks in ("1", "1,2"):  # one job after the other: the nodes share two cores
        words = ["study", "ddp", "--site", "example", "--set", "gpus_per_node=1", "--output", "study", "--cpus", "1"]
        words += ["--ranks", ranks, "--scaling", "weak", "--batch", str(batch), "--steps", "60"]
        jobgen(*words, "--", *flags, "--no-figures", "--log-interval", "10", "--epochs", "99")
        deadline = time.monotonic() + 150
        while re.search(r" (waiting|running) ", shown := jobgen("status", "study")):
            assert time.monotonic() < deadline, shown
            time.sleep(1)
        assert "failed" not in shown, shown
    page = tmp_path / "report.html"
    subprocess.run([sys.executable, "-m", "trainer", "report", tmp_path / "study", "--output", page], check=True)
    said = re.search(r'<p class="advice">(.*?)</p>', Page(page).source)[1].replace("<br>", "\n").splitlines()
    table(f"advice: {case}", [[line] for line in said])
    of_two = [line for line in said if "ranks2" in line and not line.startswith("Take")]
    assert len(of_two) == 1
    assert [what for what in (WAITS, SPEAKS, NOTHING) if what in of_two[0]] == [expected]
