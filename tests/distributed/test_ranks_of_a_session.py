"""Means over ranks, and what rank 0 alone may call."""

import json
import time

import pytest

from messages import slugs
from support import ROOT, launch_words, started, status

SCRIPT = str(ROOT / "tests" / "scripts" / "session" / "means.py")


def run(folder, stop_at=()):
    log = folder.with_name(f"{folder.name}.{time.monotonic_ns()}.log")
    words = launch_words("forked", 2, program=[SCRIPT])[:-1]
    with started(words, log, RUN_DIR=str(folder), STOP_AT=json.dumps(stop_at)) as launch:
        assert launch.wait() == 0, launch.output


@pytest.mark.core
def test_a_mean_over_ranks_is_the_same_wherever_the_run_was_stopped(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole)
    for stop_at in [(0, 0, 3), (1, 1, 2), (1, 2, 7)]:  # the last one in a batch that rank 0 does not have
        run(broken, stop_at)
        assert status(broken)["state"] == "stopped"
    run(broken)
    read = [(folder / "means.jsonl").read_text().splitlines() for folder in (whole, broken)]
    assert read[0] == read[1]
    assert len(read[0]) == 3
    for folder in (whole, broken):  # the metric of the last step came from rank 0 alone, behind the loop
        manifest = json.loads((folder / "checkpoints" / "best" / "manifest.json").read_text())
        assert (manifest["position"]["epoch"], manifest["metric"]["name"]) == (3, "loss")
        assert manifest["metric"]["value"] == json.loads(read[0][2])[2]


@pytest.mark.parametrize("alone", ["root", "other"])
def test_a_pass_on_one_rank_alone_is_refused(alone, tmp_path):
    words = launch_words("forked", 2, program=[SCRIPT.replace("means.py", "alone.py")])[:-1]
    with started(words, tmp_path / "log", RUN_DIR=str(tmp_path / "run"), ALONE=alone) as launch:
        assert launch.wait() == 1, launch.output
    assert "uneven-passes" in slugs(launch.output)


def test_a_state_that_cannot_be_saved_ends_all_ranks_alike(tmp_path):
    words = launch_words("forked", 2, program=[SCRIPT.replace("means.py", "unsavable.py")])[:-1]
    with started(words, tmp_path / "log", RUN_DIR=str(tmp_path / "run")) as launch:
        assert launch.wait() == 1, launch.output
    for rank in range(2):
        assert f"rank {rank}: unsavable-state 1" in launch.output
    assert status(tmp_path / "run")["state"] == "failed"
