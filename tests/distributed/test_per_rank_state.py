"""Scripts whose ranks have different states: stopped and resumed, each rank ends with the uninterrupted run's state."""

import re

import pytest

from support import ROOT, launch_words, output_of

SCRIPTS = ROOT / "tests" / "scripts" / "session"
DIGEST = re.compile(r"digest of rank (\d): ([0-9a-f]{64})")


def run(name, folder, *flags, ranks=2):
    """Run the script; return its output and each rank's printed digest."""
    log = folder.with_name(f"{folder.name}.{'-'.join(flags)}.log")
    words = [*launch_words("forked", ranks, program=[str(SCRIPTS / f"{name}.py")])[:-1], *flags]
    said = output_of(words, log, RUN_DIR=str(folder))
    return said, dict(DIGEST.findall(said))


@pytest.mark.core
@pytest.mark.parametrize(
    ("name", "saved", "stops"),
    [
        ("apart", "ranks.extra.noise", ["3", "5"]),  # within an epoch, and at its end, after a pass without gradients
        ("no_sync", "ranks.gradients", ["1", "3", "7"]),
        ("waiting_shards", "shards.0", ["1", "3", "7"]),
    ],
)
def test_each_rank_resumes_with_its_own_state(name, saved, stops, tmp_path):
    _, expected = run(name, tmp_path / "whole")
    assert len(expected) == 2
    for stop in stops:
        folder = tmp_path / f"stopped {stop}"
        output, found = run(name, folder, stop)
        assert not found, output
        assert (folder / "checkpoints" / "latest" / f"{saved}.safetensors").exists()
        for _ in range(2):  # the second time the run is done already
            assert run(name, folder)[1] == expected
