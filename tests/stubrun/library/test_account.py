"""Resource usage of an attempt: the line in the job log, account.json, and GPU utilization."""

import json
import re

import pytest

from jobgen.jobs import account
from messages import numbers

READ = "node1.7", "0000:01:00.0 10 870 31744 81559\n0000:02:00.0 10 880 1 81559\n"
"""Samples of one node's two GPUs."""


@pytest.fixture
def logs(place):
    """Return the folder of the attempt's logs."""
    logs = place / "run" / "logs" / "2"
    logs.mkdir(parents=True)
    return logs


@pytest.fixture
def use(bash, logs):
    """Return a function that writes the samples of nodes, and returns the log line and the record."""

    def use(code="", *gpus, **words):
        for name, text in gpus:
            (logs / f"gpus.{name}").write_text(text)
        done = bash(f"launch_pid=1 SECONDS=4500; {code or ':'}; report_usage", **words)
        assert (done.code, done.out) == (0, "")
        return done.err, json.loads((logs / "account.json").read_text())

    return use


def sum_and_numbers(said):
    """Return the sum in a usage line and the numbers after it."""
    used, _, rest = said.partition(";")
    return re.search(r"\d.*-hours$", used.strip())[0], numbers(rest)


def test_usage_line_and_account_json_are_written(use):
    said, kept = use("", READ, ("node2.9", "0000:01:00.0 1 0 5 6\n0000:02:00.0 1 100 5 6\n"))
    # 1850 % in 22 samples of equal weight
    assert sum_and_numbers(said) == ("2 nodes x 2 GPUs x 1.25 h = 5.00 GPU-hours", [84, 31, 80])
    numbers = {"seconds": 4500, "gpus_seen": 4, "busy": 84, "memory": 31744, "memory_total": 81559}
    assert kept == {"nodes": 2, "count": 2, "unit": "GPU", **numbers}


def test_gpu_samples_of_two_launches_on_node_are_merged(use):
    said, kept = use("nnodes=1", READ, ("node1.8", "0000:01:00.0 990 0 1 81559\n"))
    assert (kept["gpus_seen"], kept["busy"]) == (2, 2)
    assert len(sum_and_numbers(said)[1]) == 3


def test_usage_of_dask_client_starts_when_nodes_are_held(use):
    assert use("held_since=4000")[1]["seconds"] == 500


CORES = "2 nodes x 8 cores x 1.25 h = 20.0 core-hours"
ONE_MACHINE = "SLIPWAY_DEVICE=auto nnodes=1 gpus_per_node="


@pytest.mark.parametrize(
    ("code", "gpus", "scheduler", "expected"),
    [
        ("SECONDS=38 nnodes=1 gpus_per_node=1", [], "slurm", ("1 node x 1 GPU x 38 s = 0.011 GPU-hours", [])),
        # unknown for some nodes
        ("", [READ], "slurm", ("2 nodes x 2 GPUs x 1.25 h = 5.00 GPU-hours", [88, 31, 80, 2, 4])),
        ("SLIPWAY_DEVICE=cpu gpus_per_node=0", [], "slurm", (CORES, [])),
        ("SLIPWAY_DEVICE=cpu", [], "slurm", (CORES, [4])),
        ("SLIPWAY_DEVICE=auto", [], "slurm", ("2 nodes x 2 GPUs x 1.25 h = 5.00 GPU-hours", [])),
        ("SLIPWAY_DEVICE=auto gpus_per_node=0", [], "slurm", (CORES, [])),
        # GPUs that the scheduler does not manage
        (
            "SLIPWAY_DEVICE=cuda gpus_per_node=0 devices_per_rank=2",
            [],
            "slurm",
            ("2 nodes x 4 GPUs x 1.25 h = 10.0 GPU-hours", []),
        ),
        (f"{ONE_MACHINE}2", [], "local", ("1 node x 2 GPUs x 1.25 h = 2.50 GPU-hours", [])),
        (f"{ONE_MACHINE}0", [], "local", ("1 node x 8 cores x 1.25 h = 10.0 core-hours", [])),
        # torch for CPUs
        (f"{ONE_MACHINE}0", [READ], "local", ("1 node x 8 cores x 1.25 h = 10.0 core-hours", [])),
        (f"{ONE_MACHINE}2", [READ], "local", ("1 node x 2 GPUs x 1.25 h = 2.50 GPU-hours", [88, 31, 80])),
    ],
)
def test_usage_counts_gpus_or_cores_by_device(use, code, gpus, scheduler, expected):
    said, kept = use(code, *gpus, scheduler=scheduler)
    assert (sum_and_numbers(said), kept["gpus_seen"]) == (expected, 2 * len(gpus))


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        "0000:01:00.0 1 9",
        "0000:01:00.0 0 0 0 0\n",
        "a b c 4 5\n",
        "x 1 2 3 a[$(touch executed)]\n",
        "x 08 1 1 1\n",
        "x 1 99999999999999999999 1 1\n",
        "x 1 2 3 4 5\n",
    ],
)
def test_damaged_gpu_samples_are_ignored_and_not_executed(use, place, line):
    said, kept = use("", ("node1.7", line))
    assert (kept["gpus_seen"], sum_and_numbers(said)[1]) == (0, [])
    assert not (place / "executed").exists()


def test_no_usage_is_reported_if_no_rank_started(bash, logs):
    assert bash("unset launch_pid; report_usage; launch_pid=''; report_usage") == (0, "", "")
    assert not (logs / "account.json").exists()


def test_usage_line_is_printed_if_account_json_cannot_be_written(bash):
    code, _, err = bash("launch_pid=1 code=0 SLIPWAY_SCRIPT=x world_size=1; rm -r run/logs; finish none")
    assert (code, "2 nodes x " in err) == (0, True)


FULL = "gpus_seen=1 busy=100 memory=512 memory_total=10239"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("read_gpu_usage; describe_gpus 4; count_used_gpus", ["2"]),
        (f"{FULL}; describe_gpus 1", ["100", "0.5", "10.0"]),
        (f"{FULL} nnodes=1 count=2 unit=GPU seconds=9; usage_json", ["9", "1", "2", "1", "100", "512", "10239"]),
    ],
)
def test_gpu_usage_helpers_print_expected_numbers(bash, code, said):
    assert sorted(re.findall(r"[\d.]+", bash(code).out)) == sorted(said)


@pytest.mark.parametrize("gpus", [(), (READ,), (READ, ("node2.7", READ[1]))])
@pytest.mark.parametrize("code", ["", "SLIPWAY_DEVICE=cpu gpus_per_node=0", "nnodes=1 gpus_per_node=1", "SECONDS=99"])
def test_jobgen_prints_same_usage_line(use, logs, gpus, code):
    said, _ = use(code, *gpus)
    found = account.read_account(logs / "account.json")
    assert said == f"x.job: {account.describe([found], attempts=1)}\n"
