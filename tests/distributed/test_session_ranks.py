"""Means over ranks, data that differ between ranks, and calls that only rank 0 may make."""

import json
import time

import pytest

from messages import assert_names, slugs
from session_runs import words
from support import output_of, status


def run(folder, stop_at=()):
    log = folder.with_name(f"{folder.name}.{time.monotonic_ns()}.log")
    output_of(words("means", 2), log, RUN_DIR=str(folder), STOP_AT=json.dumps(stop_at))


@pytest.mark.core
def test_mean_over_ranks_is_independent_of_stops(tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run(whole)
    for stop_at in [(0, 0, 3), (1, 1, 2), (1, 2, 7)]:  # the last one in a batch that rank 0 does not have
        run(broken, stop_at)
        assert status(broken)["state"] == "stopped"
    run(broken)
    read = [(folder / "means.jsonl").read_text().splitlines() for folder in (whole, broken)]
    assert read[0] == read[1]
    assert len(read[0]) == 3
    for folder in (whole, broken):  # only rank 0 set the last step's metric, after the loop
        manifest = json.loads((folder / "checkpoints" / "best" / "manifest.json").read_text())
        assert (manifest["position"]["epoch"], manifest["metric"]["name"]) == (3, "loss")
        assert manifest["metric"]["value"] == json.loads(read[0][2])[2]


@pytest.mark.parametrize("alone", ["root", "other"])
def test_pass_on_only_one_rank_is_refused(alone, tmp_path):
    said = output_of(words("alone", 2), tmp_path / "log", code=1, RUN_DIR=str(tmp_path / "run"), ALONE=alone)
    assert "uneven-passes" in slugs(said)


def slugs_of_shared_data(tmp_path, *, sampler, unseeded, code=0):
    env = {"RUN_DIR": str(tmp_path / "run"), "SAMPLER": sampler, "UNSEEDED": unseeded}
    return {*slugs(output_of(words("shared_data", 2), tmp_path / "log", code=code, **env))}


@pytest.mark.parametrize("sampler", ["torch", "slipway"])
@pytest.mark.parametrize(
    ("unseeded", "code", "said"),
    [("split", 1, {"different-data"}), ("samples", 0, {"different-data"}), ("nothing", 0, set())],
)
def test_data_that_sampler_divides_must_be_same_on_all_ranks(sampler, unseeded, code, said, tmp_path):
    assert slugs_of_shared_data(tmp_path, sampler=sampler, unseeded=unseeded, code=code) == said


@pytest.mark.parametrize("sampler", ["shuffle", "in order"])
@pytest.mark.parametrize(("unseeded", "said"), [("nothing", {"undivided-data"}), ("split", set())])
def test_data_that_each_rank_reads_whole_warn(sampler, unseeded, said, tmp_path):
    assert slugs_of_shared_data(tmp_path, sampler=sampler, unseeded=unseeded) == said


def test_unsavable_state_raises_same_error_on_all_ranks(tmp_path):
    said = output_of(words("unsavable", 2), tmp_path / "log", code=1, RUN_DIR=str(tmp_path / "run"))
    assert_names(said, *(f"rank {rank}: unsavable-state 1" for rank in range(2)))
    assert status(tmp_path / "run")["state"] == "failed"
