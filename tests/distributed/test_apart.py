"""Scripts whose ranks hold different states: stopped and resumed, each rank ends with what it would have had."""

import re

import pytest

from support import ROOT, launch_words, started

SCRIPT = str(ROOT / "tests" / "scripts" / "session" / "apart.py")
DIGEST = re.compile(r"digest of rank (\d): (\w+)")


def run(folder, *flags, ranks=2):
    """Run the script; return its output, and the digest that each rank has printed."""
    log = folder.with_name(f"{folder.name}.{'-'.join(flags)}.log")
    words = [*launch_words("forked", ranks, program=[SCRIPT])[:-1], *flags]
    with started(words, log, RUN_DIR=str(folder)) as launch:
        assert launch.wait(300) == 0, launch.output
    return launch.output, dict(DIGEST.findall(launch.output))


@pytest.mark.core
def test_each_rank_continues_with_its_own_state(tmp_path):
    _, expected = run(tmp_path / "whole")
    assert len({*expected.values()}) == len(expected) == 2
    for stop in ("3", "5"):  # within an epoch, and at its end, after a pass without gradients
        folder = tmp_path / f"stopped {stop}"
        output, found = run(folder, stop)
        assert not found, output
        assert (folder / "checkpoints" / "latest" / "ranks.extra.noise.safetensors").exists()
        assert run(folder)[1] == expected
