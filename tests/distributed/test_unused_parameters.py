"""A model whose steps leave parameters unused, on some or all ranks, trains as in one process."""

import pytest

from messages import assert_names, slugs
from support import ROOT, train, weights

ARCH = ["--arch", "routed_model:build", "--no-figures"]
FLAGS = [*ARCH, "--batch-size", "16", "--max-steps", "40", "--dtype", "float64"]
SGD = ["--optimizer", "sgd", "--momentum", "0", "--lr", "0.05"]
MOMENTUM = ["--optimizer", "sgd", "--lr", "0.01", "--batch-size", "4"]
"""The first steps have no sample for the second branch, whose parameters get their momentum later."""
TESTS = {"PYTHONPATH": str(ROOT / "tests")}
LIMIT = 1e-12


def difference(first, second):
    """Return the largest difference between weights of two runs."""
    one, other = (weights(run / "checkpoints" / "latest") for run in (first, second))
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize(
    "extra",
    [SGD, MOMENTUM, [], ["--grad-accum-steps", "2"]],
    ids=["sgd", "momentum", "adamw", "micro-steps"],
)
def test_two_ranks_with_unused_parameters_match_one_process(extra, tmp_path):
    train("single", 1, tmp_path / "one", *FLAGS, *extra, **TESTS)
    train("spawn", 2, tmp_path / "two", *FLAGS, *extra, "--find-unused-parameters", **TESTS)
    assert difference(tmp_path / "one", tmp_path / "two") <= LIMIT


@pytest.mark.horovod
def test_horovod_handles_unused_parameters_without_flag(tmp_path):
    """The backend reduces zeros for them: the same without weight decay and momentum, which also act on zeros."""
    flags = [*FLAGS, *SGD, "--weight-decay", "0"]
    train("single", 1, tmp_path / "one", *flags, **TESTS)
    train("horovodrun", 2, tmp_path / "two", *flags, **TESTS)
    assert difference(tmp_path / "one", tmp_path / "two") <= LIMIT


def test_unused_parameters_error_suggests_find_unused_parameters(tmp_path):
    said = train("spawn", 2, tmp_path / "run", *FLAGS, code=78, **TESTS)
    assert set(slugs(said)) == {"unused-parameters"}  # from one rank, or from both
    assert_names(said, "--find-unused-parameters")
    assert "Traceback" not in said
