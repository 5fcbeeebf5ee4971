"""jobgen study on a real Slurm: submitted, followed, run again for what has failed."""

import json
import re
import sys
import time

import pytest

from support import status

JOBGEN = [sys.executable, "-m", "jobgen"]
TRAINS = ["--arch", "mlp", "--no-figures", "--epochs", "6"]
SETTINGS = {"SLIPWAY_DEVICE": "cpu", "SLIPWAY_VENV": sys.prefix, "USE_CONTAINER": "0"}
NAMES = [f"nodes{nodes}-ranks{ranks}-cpus{cpus}" for nodes, ranks in ((1, 1), (1, 2), (2, 4)) for cpus in (1, 2)]


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_a_study_is_submitted_followed_and_run_again(cluster, tmp_path, table):
    """Six points: of one the time limit is near, and one finds a file where its run folder belongs."""
    study, wrong, limited = tmp_path / "study", NAMES[3], NAMES[4]

    def jobgen(*words):
        # from a folder of the user's own, where the jobs' logs go
        return cluster.run("env", f"--chdir={tmp_path}", *JOBGEN, *words, **SETTINGS)

    def submit(*, ranks="1,2,4", cpus="1,2", more=()):
        words = ["study", "ddp", "--site", "example", "--ranks", ranks, "--cpus", cpus, "--output", "study"]
        return jobgen(*words, *more, "--", *TRAINS)

    def job_of(name):
        entries = json.loads((study / "study.json").read_text())["points"]
        return next(entry["job"] for entry in entries if entry["name"] == name)

    def until(condition, what, limit=240):
        deadline = time.monotonic() + limit
        while not condition(shown := jobgen("status", "study")):
            assert time.monotonic() < deadline, f"{what}: not within {limit} s:\n{shown}"
            time.sleep(1)
        return dict(re.findall(r"(?m)^(nodes\S+) +(\w+)", shown)), shown

    assert "6 of 6 point(s) to submit" in submit(more=["--dry-run"])
    assert not study.exists()
    assert "1 of 1 point(s) to submit" in submit(ranks="1", cpus="1")
    (study / wrong).write_text("a file\n")
    assert "5 of 6 point(s) to submit" in submit()
    until(lambda _: (study / limited / "metrics.jsonl").exists(), f"{limited} trains")
    cluster.run("scancel", "--batch", "--signal=USR1", job_of(limited))
    states, shown = until(lambda text: not re.search(" (waiting|running) ", text), "all points end")
    table("jobgen status of a study", [[line.replace(str(tmp_path), "")] for line in shown.splitlines()])
    assert states == {name: "failed" if name == wrong else "done" for name in NAMES}
    assert status(study / limited)["attempt"] == 2
    (study / wrong).unlink()
    assert "1 of 6 point(s) to submit" in submit()
    states, _ = until(lambda text: not re.search(" (waiting|running) ", text), "the failed point ends")
    assert states == dict.fromkeys(NAMES, "done")
    for name in NAMES:
        run = json.loads((study / name / "run.json").read_text())
        ranks, cpus = map(int, re.findall(r"ranks(\d)-cpus(\d)", name)[0])
        assert (run["world_size"], run["launch"]["threads"]) == (ranks, cpus)
