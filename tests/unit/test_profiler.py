"""Steps that --profile records, and the files that it writes."""

import gzip
import json
import re
from types import SimpleNamespace

import pytest
import torch

from messages import assert_warning, refused
from slipway.base.environment import World
from trainer.config.settings import Launch
from trainer.engine.profiler import BACKWARD, DATA, FORWARD, PARTS, describe, profiled, profiler_for, warn_if_missed

ALONE = World()


def micro_batches(epochs, *, total=2):
    """Return the batches of each epoch, each step in ``total`` micro-batches."""
    micros = [SimpleNamespace(micro=SimpleNamespace(last=number == total - 1)) for number in range(total)]
    return [micros * steps for steps in epochs]


def work(profiler, epochs, *, total=2):
    for batches in micro_batches(epochs, total=total):
        for _ in profiler.watch(batches):
            with profiled(BACKWARD):
                torch.ones(50, 50) @ torch.ones(50, 50)


def written(folder, rank=0):
    trace = json.loads(gzip.decompress((folder / f"rank{rank}.trace.json.gz").read_bytes()))
    return json.loads((folder / f"rank{rank}.json").read_text()), [event.get("name") for event in trace["traceEvents"]]


@pytest.mark.parametrize(
    ("steps", "epochs", "recorded"),
    [
        ("1", [3], (1, 1)),
        ("2-3", [5], (2, 3)),
        ("4-5", [3, 3], (4, 5)),  # the first two of the second epoch
        ("3-4", [3, 3], (3, 3)),  # not across the end of an epoch
        ("3-9", [4], (3, 4)),
    ],
)
def test_requested_steps_are_profiled_within_epoch(tmp_path, steps, epochs, recorded):
    work(profiler_for(Launch(profile=steps), tmp_path, ALONE), epochs)
    found, names = written(tmp_path / "profile")
    first, last = recorded
    assert (found["rank"], found["steps"]) == (0, [first, last])
    micros = 2 * (last - first + 1)
    assert names.count(BACKWARD) == micros
    assert micros <= names.count(DATA) <= micros + 1  # at the end of an epoch, the profiler waits for that too
    assert list(found["parts"]) == list(PARTS)
    assert 0 < found["parts"][BACKWARD] < found["seconds"]
    (product,) = [row for row in found["operators"] if row["name"] == "aten::mm"]
    assert product["calls"] == micros
    assert len(found["operators"]) <= 5
    costs = [row["seconds"] for row in found["operators"]]
    assert costs == sorted(costs, reverse=True)
    assert re.match(rf"\D*{first}\D+{last}\b.*\b0: {DATA} \d+%, {FORWARD} 0%, {BACKWARD} \d+%", describe(found))
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == ["rank0.json", "rank0.trace.json.gz"]


@pytest.mark.parametrize("first", ["4", "9"])
def test_profile_of_steps_that_never_run_only_warns(tmp_path, caplog, first):
    work(profiler_for(Launch(profile=first), tmp_path, ALONE), [3])
    assert list(tmp_path.iterdir()) == []
    warn_if_missed("3", 3)
    assert caplog.messages == []
    warn_if_missed(first, 3)
    assert len(caplog.messages) == 1
    assert_warning(caplog.text, "no-profile", f"--profile {first}", " 3 ")


def test_profile_stopped_midway_is_written(tmp_path):
    batches = profiler_for(Launch(profile="1-9"), tmp_path, ALONE).watch(micro_batches([5], total=1)[0])
    next(batches), next(batches)
    batches.close()
    assert written(tmp_path / "profile")[0]["steps"] == [1, 1]


def test_unwritable_profile_folder_warns_without_ending_run(tmp_path, caplog):
    (tmp_path / "profile").write_text("a file")
    work(profiler_for(Launch(profile="1"), tmp_path, ALONE), [2])
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert_warning(message, "no-profile", "[Errno 17] File exists: ", tmp_path / "profile")


@pytest.mark.parametrize(("ranks", "recording"), [("0", [0]), ("1", [1]), ("0,2", [0, 2]), ("all", [0, 1, 2])])
def test_only_selected_ranks_are_profiled(tmp_path, ranks, recording):
    launch = Launch(profile="1", profile_ranks=ranks)
    found = [rank for rank in range(3) if profiler_for(launch, tmp_path, World(rank, 3, rank, 3))]
    assert found == recording
    assert profiler_for(Launch(profile_ranks=ranks), tmp_path, ALONE) is None


@pytest.mark.parametrize(
    ("steps", "ranks", "values"),
    [("5-4", "0", ["launch.profile: ", "5-4"]), ("5", "3", ["launch.profile_ranks: ", " 3", " 0 ", " 2."])],
)
def test_invalid_profile_steps_or_ranks_are_refused_on_all_ranks(tmp_path, steps, ranks, values):
    for rank in range(3):
        with refused("bad-profile", *values) as error:
            profiler_for(Launch(profile=steps, profile_ranks=ranks), tmp_path, World(rank, 3, rank, 3))
        assert error.value.raised_on_all_ranks
