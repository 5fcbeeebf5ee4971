"""Unchanged user scripts: the world that they form under the committed job scripts, and the job log."""

import re
from typing import NamedTuple

import pytest

from support import ROOT

SCRIPTS = ROOT / "tests" / "scripts" / "unchanged"


class Case(NamedTuple):
    script: str
    job: str
    env: dict[str, str]
    sbatch: tuple[str, ...]
    ranks: int
    """Size of the world that the script forms; 0 if it is ended before."""
    line: str
    """Expected text of the job log."""
    state: str = "COMPLETED"


ONE_RANK = {"SLIPWAY_RANKS_PER_NODE": "1"}
CASES = {
    "address": Case("sets_address.py", "ddp.job", {}, (), 4, "the script has set MASTER_PORT=12355"),
    "address, by srun": Case("sets_address.py", "ddp-ranks.job", {}, (), 4, "the script has set MASTER_PORT=12355"),
    "local_rank": Case("local_rank.py", "ddp.job", {}, (), 4, "joined as 3 of 4"),
    "spawns": Case("spawns.py", "ddp.job", {}, (), 0, "error[joins-other-ranks]", "FAILED"),
    "spawns, one process": Case("spawns.py", "ddp.job", ONE_RANK, ("--nodes=1",), 2, "joined as 1 of 2"),
    "alone": Case("alone.py", "ddp.job", {}, (), 1, "warning[ranks-not-connected]"),
    "horovod": Case("under_horovod.py", "ddp.job", {}, (), 0, "error[joins-other-ranks]", "FAILED"),
    "horovod, as one": Case("under_horovod.py", "ddp.job", {"BACKEND": "horovod"}, (), 4, "joined as 3 of 4"),
}
SHORT = {"address", "alone"}
"""Cases of `make test`."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else [pytest.mark.prove]) for name in CASES]
)
def test_unchanged_script_forms_planned_world_or_job_reports_it(name, cluster, tmp_path, table):
    case = CASES[name]
    env = {"SLIPWAY_SCRIPT": str(SCRIPTS / case.script), **case.env}
    job = cluster.submit(case.job, out=tmp_path / "run", sbatch=case.sbatch, **env)
    job.ends(JobState=case.state)
    said = next((line for line in job.output.splitlines() if case.line in line), "")
    assert said, job.output
    formed = {tuple(map(int, found)) for found in re.findall(r"joined as (\d) of (\d)", job.output)}
    assert formed == {(rank, case.ranks) for rank in range(case.ranks)}
    table(
        f"unchanged scripts: {name}", [[name, case.script, case.job, *case.env.values(), f"{case.ranks} ranks", said]]
    )
