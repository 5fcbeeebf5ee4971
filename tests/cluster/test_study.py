"""jobgen study on a real Slurm: submit, follow, rerun failed points, report."""

import json
import re
import subprocess
import sys

import pytest

from clusters import EXPORTED, until
from report_page import Page
from support import status

TRAINS = ["--arch", "mlp", "--no-figures", "--epochs", "100"]
SETTINGS = {**EXPORTED, "OMP_WAIT_POLICY": "passive"}
"""More threads than cores run here, so they must not wait by spinning."""
NAMES = [f"nodes{nodes}-ranks{ranks}-cpus{cpus}" for nodes, ranks in ((1, 1), (1, 2), (2, 4)) for cpus in (1, 2)]


@pytest.mark.prove
@pytest.mark.timeout(2000)
def test_study_reruns_failed_points_and_is_reported(cluster, tmp_path, table):
    """Six points: one is ended by its time limit, at a site that requeues none, and one finds a file as its folder."""
    study, wrong, limited = tmp_path / "study", NAMES[3], NAMES[4]

    def jobgen(*words):
        return cluster.jobgen(*words, folder=tmp_path, **SETTINGS)  # the folder of the job logs

    def submit(*, ranks="1,2,4", cpus="1,2", more=()):
        words = ["study", "ddp", "--site", "example", "--ranks", ranks, "--cpus", cpus, "--output", "study"]
        return jobgen(*words, "--set", "resume=none", *more, "--", *TRAINS)

    def job_of(name):
        entries = json.loads((study / "study.json").read_text())["points"]
        return next(entry["job"] for entry in entries if entry["name"] == name)

    def shown():
        return jobgen("status", "study")

    def until_all_end():
        over = until(lambda: not re.search(" (waiting|running) ", shown()), limit=900, pause=1)
        assert over is not None, shown()
        table("jobgen status of a study", [[line.replace(str(tmp_path), "")] for line in shown().splitlines()])
        return dict(re.findall(r"(?m)^(nodes\S+) +(\w+)", shown()))

    assert "6 of 6 point(s) to submit" in submit(more=["--dry-run"])
    assert not study.exists()
    assert "1 of 1 point(s) to submit" in submit(ranks="1", cpus="1")
    (study / wrong).write_text("a file\n")
    assert "5 of 6 point(s) to submit" in submit()
    assert until((study / limited / "metrics.jsonl").exists, limit=900) is not None, shown()
    cluster.run("scontrol", "update", f"JobId={job_of(limited)}", "TimeLimit=1")  # Slurm signals it at once
    assert until_all_end() == {name: "failed" if name in (wrong, limited) else "done" for name in NAMES}
    assert re.search(rf"(?m)^{limited} .*out-of-time \(time-limit", shown())
    (study / wrong).unlink()
    assert "2 of 6 point(s) to submit" in submit()
    assert until_all_end() == dict.fromkeys(NAMES, "done")
    assert "0 of 6 point(s) to submit" in submit()
    assert status(study / limited)["attempt"] == 2
    for name in NAMES:
        run = json.loads((study / name / "run.json").read_text())
        ranks, cpus = map(int, re.findall(r"ranks(\d)-cpus(\d)", name)[0])
        assert (run["world_size"], run["launch"]["threads"]) == (ranks, cpus)
    report = tmp_path / "report.html"
    subprocess.run([sys.executable, "-m", "trainer", "report", study, "--output", report], check=True)
    page = Page(report)
    assert all(name in page.text for name in NAMES)
    assert "Take nodes" in page.text
    assert 'class="warnings"' not in page.source
