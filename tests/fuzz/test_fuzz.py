"""Random scripts with a session, uninterrupted and killed (see __main__.py), saved findings, and planted faults."""

import contextlib
import os
import random
import re
import sys
import time
from pathlib import Path

import pytest

from messages import slugs
from support import started

HERE = Path(__file__).resolve().parent
KEPT, PLANTED = sorted(HERE.glob("cases/*.py")), sorted(HERE.glob("planted/*.py"))
SHARDS = 2
COUNT = 5
"""Scripts in each shard of `make test`: a fixed number, so that each machine runs the same."""
MINUTES = 20
"""Scripts in total, in `make prove`, unless COUNT sets their number."""


def words(*flags):
    return [sys.executable, str(HERE / "__main__.py"), *map(str, flags)]


@pytest.mark.core
@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_scripts_resume_exactly(shard, tmp_path, table):
    with started(words("--count", COUNT, "--first", shard, "--stride", SHARDS), tmp_path / "log") as launch:
        code = launch.wait()
    assert code == 0, launch.output
    table(f"random scripts, shard {shard}", [[launch.output.splitlines()[-1]]])


@pytest.mark.core
def test_saved_findings_of_random_scripts_pass(tmp_path):
    with started(words(*KEPT), tmp_path / "log") as launch:
        code = launch.wait()
    assert code == 0, launch.output


@pytest.mark.core
def test_planted_faults_are_detected(tmp_path):
    with started(words(*PLANTED), tmp_path / "log") as launch:
        launch.wait()
    found = dict(re.findall(r"(?m)^(\w+)\.py: ([a-z, ]+?)(?: after .*)?(?:: |$)", launch.output))
    assert found == {
        "differs": "differs",
        "differs_unnamed": "differs unnamed",
        "never_came": "differs",
        "not_deterministic": "not deterministic",
        "says": "says",
    }, launch.output
    assert slugs(launch.output).count("epoch-without-batches") >= 1


@pytest.mark.prove
@pytest.mark.timeout(4 * 3600)
def test_many_random_scripts_resume_exactly(tmp_path, capfd, table):
    shards, count = len(os.sched_getaffinity(0)), int(os.environ.get("COUNT") or 0)
    first = random.randrange(1 << 30)
    much = ("--count", -(-count // shards)) if count else ("--minutes", MINUTES)
    with contextlib.ExitStack() as stack:
        launches = {}
        for shard in range(shards):
            flags = words(*much, "--first", first + shard, "--stride", shards, "--keep-going", "--shrink")
            launches[stack.enter_context(started(flags, tmp_path / f"{shard}.log"))] = 0
        while any(launch.process.poll() is None for launch in launches):
            time.sleep(1)
            for launch, shown in launches.items():
                new = launch.output[shown:]
                launches[launch] += len(new)
                with capfd.disabled():
                    print(new, end="", flush=True)
    table(f"random scripts from seed {first} on", [[launch.output.splitlines()[-1]] for launch in launches])
    assert all(launch.process.returncode == 0 for launch in launches)
