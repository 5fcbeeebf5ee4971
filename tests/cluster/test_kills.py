"""A hundred kills on four nodes and a spare one, by the plan of ``kills.py``.

KILLS_REPORT: a file that gets a line for each kill. KILLS_SLURMD_TIMEOUT: of Slurm, 10 s. KILLS_COLLECTIVE_TIMEOUT: for
how long ranks wait for each other, 600 s.
"""

import os
import shutil
from pathlib import Path

import pytest

import kills
import recovery
from clusters import LIBRARY, rendered, started
from support import digest

PLAN = kills.plan()
TIMEOUT = int(os.environ.get("KILLS_SLURMD_TIMEOUT", "10"))
COLLECTIVE_TIMEOUT = os.environ.get("KILLS_COLLECTIVE_TIMEOUT", "600")
SETTINGS = {
    "SLIPWAY_LIB": str(LIBRARY),
    "SLIPWAY_RANKS_PER_NODE": "1",
    "SLIPWAY_MAX_RESTARTS": "9",
    "SLIPWAY_MAX_REQUEUES": "9",
}


@pytest.fixture(scope="module")
def five_nodes(tmp_path_factory):
    yield from started(tmp_path_factory.getbasetemp(), nodes=kills.NODES + 1, slurmd_timeout=TIMEOUT)


@pytest.fixture(scope="module")
def submit(five_nodes, tmp_path_factory, image):
    """Return a function that submits a job and returns it and its run folder."""
    folder = tmp_path_factory.mktemp("kills")
    shutil.copy(kills.SLOW_DATA, folder)
    script = rendered(folder, "ddp", "example", f"nodes={kills.NODES}", "spares=1")

    def submit(name, *, epochs, container):
        env = SETTINGS | (image if container else {})
        out = folder / name
        config = kills.config(folder, epochs, COLLECTIVE_TIMEOUT)
        return five_nodes.submit(str(script), out=out, folder=folder, SLIPWAY_CONFIG=str(config), **env), out

    return submit


@pytest.fixture(scope="module")
def whole(submit):
    """Return a function that returns the digest of an undisturbed run of the given epochs."""
    known = {}

    def whole(epochs, container):
        if (epochs, container) not in known:
            job, out = submit(f"whole-{epochs}-{container}", epochs=epochs, container=container)
            job.ends(limit=600)
            known[epochs, container] = digest(out / "checkpoints" / "latest")
        return known[epochs, container]

    return whole


@pytest.mark.prove
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("number", range(kills.JOBS))
def test_job_with_kills_matches_undisturbed_run(five_nodes, submit, whole, number):
    planned, container = PLAN[number], kills.in_container(number)
    epochs = kills.epochs(planned, TIMEOUT)
    wanted = whole(epochs, container)
    job, out = submit(f"job-{number}", epochs=epochs, container=container)
    outcomes = [recovery.Outcome(number, kill, container, TIMEOUT) for kill in planned]
    campaign = kills.Campaign(five_nodes, job, out)
    try:
        kills.run_job(campaign, planned, outcomes, whole=wanted)
    except AssertionError as error:
        for outcome in outcomes:
            outcome.failure = outcome.failure or str(error).partition("\n")[0]
        raise
    finally:
        if report := os.environ.get("KILLS_REPORT"):
            recovery.append(Path(report), outcomes)
        five_nodes.cancel_jobs()
        campaign.repair()
    assert {outcome.failure for outcome in outcomes} == {""}, f"{outcomes}\n{job.output}"
