"""jobgen sweep on a real Slurm and a real OpenPBS: a task requeued, one that fails, rungs, how many run together."""

import json
import re
import sys
from pathlib import Path

import pytest

from clusters import AS_ROOT, EXPORTED, LIBRARY, until

TRAINS = ["--arch", "mlp", "--no-figures", "--log-interval", "1"]
AXES = ["--set", "optim.lr=0.01,0.003,0.001", "--set", "train.batch_size=64,128", "--seeds", "2"]
NAMES = [f"{number:03}" for number in range(12)]
REQUEUED, WRONG = "003", "005"
SMALL = ["--set", "cpus_per_gpu=1"]
"""A trial uses two cores, so that a node has room for at least four."""


class Sweeps:
    """Sweeps of a user in ``folder`` on a cluster's login node."""

    def __init__(self, cluster, folder, site, **env):
        self.cluster, self.folder, self.site, self.env = cluster, folder, site, {**EXPORTED, **env}
        self.sweep = folder / "sweep"

    def jobgen(self, *words):
        return self.cluster.jobgen(*words, folder=self.folder, **self.env)

    def submit(self, *words, trains=(), output="sweep"):
        command = ["sweep", "cpu", "--site", self.site, "--output", output, *SMALL, *words]
        return self.jobgen(*command, "--", *TRAINS, *trains)

    @property
    def trials(self):
        return {trial["name"]: trial for trial in json.loads((self.sweep / "sweep.json").read_text())["trials"]}

    def ended(self, *, limit=420):
        """Wait until no trial waits or runs; return the state of each, and the output lines."""

        def shown():
            return self.jobgen("status", "sweep")

        over = until(lambda: not re.search(r"\b(waiting|running)\b", shown().splitlines()[-1]), limit=limit, pause=1)
        assert over is not None, shown()
        return dict(sorted(re.findall(r"(?m)^(\d{3}) +(\w+)", shown()))), shown().splitlines()

    def until_it_trains(self, name):
        trains = until((self.sweep / name / "metrics.jsonl").exists, limit=300, pause=0.05)
        assert trains is not None, self.jobgen("status", "sweep")


def most_at_once(folder, *, without=""):
    """Return the number of concurrent launches of the runs in ``folder``, from the times of their files."""
    changes = []
    for log in set(folder.glob("*/logs/*/code")) - {folder / without / "code"}:
        changes += [((log.parent / "job").stat().st_mtime, 1), (log.stat().st_mtime, -1)]
    assert changes
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def trained(run):
    """Return the bytes of the last checkpoint, and the records without times."""
    newest = run / "checkpoints" / "latest"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    keys = ("kind", "step", "epoch", "loss", "lr", "accuracy", "top5")
    weights = {name: (newest / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}
    return weights, [[record.get(key) for key in keys] for record in records]


def attempts(run):
    return [(path.parent.name, path.read_text().split()[1]) for path in sorted(run.glob("logs/*/job"))]


@pytest.fixture
def sweeps(cluster, tmp_path):
    return Sweeps(cluster, tmp_path, "example")


REQUEUE = {
    # once: while a requeued task waits, scancel tries again, and would signal its next attempt too
    "sweeps": ["sh", "-c", "timeout 3 scancel --batch --signal=USR1 {array}_{task} || :"],
    "pbs_sweeps": ["/opt/pbs/bin/qrerun", "{array}[{task}]"],
}
"""What puts a running task back into the queue: a time limit under Slurm, an operator under OpenPBS."""


@pytest.mark.prove
@pytest.mark.parametrize("scheduler", REQUEUE)
def test_sweep_runs_two_trials_at_once_and_reruns_failed_trial(request, scheduler, table):
    """One task is requeued, and one finds a file where its run folder belongs."""
    sweeps = request.getfixturevalue(scheduler)
    folder, words, trains = sweeps.sweep, [*AXES, "--at-once", "2"], ["--epochs", "20"]
    assert "12 of 12 trial(s) to submit" in sweeps.submit(*words, "--dry-run", trains=trains)
    assert not folder.exists()
    assert "12 of 12 trial(s) to submit" in sweeps.submit(*words, trains=trains)
    (folder / WRONG).write_text("a file\n")
    array = sweeps.trials["000"]["job"].partition("_")[0]
    sweeps.until_it_trains(REQUEUED)
    sweeps.cluster.run(*(word.format(array=array, task=int(REQUEUED)) for word in REQUEUE[scheduler]))
    states, shown = sweeps.ended()
    table(f"jobgen status of a sweep: {scheduler}", [[line.replace(str(sweeps.folder), "")] for line in shown])
    assert states == {name: "failed" if name == WRONG else "done" for name in NAMES}
    assert [len(attempts(folder / name)) for name in (REQUEUED, "000")] == [2, 1]
    assert "0 of 12" not in sweeps.submit(*words, "--dry-run", trains=trains)
    (folder / WRONG).unlink()
    assert "1 of 12 trial(s) to submit" in sweeps.submit(*words, trains=trains)
    states, _ = sweeps.ended()
    assert states == dict.fromkeys(NAMES, "done")
    # PBS starts the next task while the requeued one still saves
    assert most_at_once(folder, without=f"{REQUEUED}/logs/1" if scheduler == "pbs_sweeps" else "") == 2
    jobs = {name: trial["job"] for name, trial in sweeps.trials.items()}
    assert "_" not in jobs.pop(WRONG)
    assert jobs == {name: f"{array}_{int(name)}" for name in jobs}
    undisturbed(sweeps, sweeps.trials[REQUEUED]["values"], seed=1, trains=trains)
    assert trained(folder / REQUEUED) == trained(sweeps.folder / "whole")


def undisturbed(sweeps, values, *, seed, trains):
    """Train the same trial without a sweep, in the folder ``whole``."""
    flags = [f"--{key.partition('.')[2].replace('_', '-')}={value}" for key, value in values.items()]
    command = ["submit", "cpu", "--site", sweeps.site, *SMALL, "--", *TRAINS, *trains, *flags, f"--seed={seed}"]
    whole = sweeps.folder / "whole"
    sweeps.env["SLIPWAY_RUN_DIR"] = str(whole)
    sweeps.jobgen(*command)
    del sweeps.env["SLIPWAY_RUN_DIR"]
    assert until((whole / "verdict.1").exists, limit=200) is not None, sweeps.jobgen("status", str(whole))


def test_best_trials_continue_in_their_run_folders(sweeps, table):
    """Successive halving over three rungs; the winner equals an uninterrupted run."""
    words = ["--set", "optim.lr=0.1,0.01,0.001,0.0001", "--rungs", "1,2,4", "--keep", "2"]
    shown = []
    for _ in range(3):
        shown.append(sweeps.submit(*words).splitlines()[-3:])
        states, _ = sweeps.ended()
        assert set(states.values()) == {"done"}
    assert "last rung" in sweeps.submit(*words)
    table("rungs", [[line] for lines in shown for line in lines])
    rungs = sorted((trial["rung"], name) for name, trial in sweeps.trials.items())
    assert [rung for rung, _ in rungs] == [0, 0, 1, 2]
    assert [len(attempts(sweeps.sweep / name)) for _, name in rungs] == [1, 1, 2, 3]
    winner = rungs[-1][1]
    undisturbed(sweeps, sweeps.trials[winner]["values"], seed=0, trains=["--epochs", "4"])
    assert trained(sweeps.sweep / winner) == trained(sweeps.folder / "whole")


@pytest.fixture
def pbs_sweeps(openpbs, users_folder):
    cluster = openpbs.cluster
    folder = cluster.folder / "root" / users_folder.name
    folder.mkdir(parents=True)
    path = f"/opt/pbs/bin:{Path(sys.executable).parent}:/usr/bin:/bin"
    return Sweeps(cluster, folder, "pbs", PATH=path, SLIPWAY_LIB=str(LIBRARY))


@pytest.mark.prove
@pytest.mark.parametrize("resume", ["chain", "requeue"])
def test_array_task_continues_after_its_time_limit(pbs_sweeps, openpbs, table, resume):
    """Its job's time is 190 s, of which 140 s are kept for an answer of the server and the last save."""
    openpbs.run("qmgr", "-c", "set server operators = root@*", user="root")  # on any node; operators may use qrerun
    sweeps, folder = pbs_sweeps, pbs_sweeps.sweep
    machine = [word for name, value in AS_ROOT.items() for word in ("--set", f"env.{name}='{value}'")]
    limit = ["--set", f"resume={resume}", "--set", "options.walltime='00:03:10'", *machine]
    words, trains = ["--set", "optim.lr=0.01,0.001", *limit], ["--epochs", "150"]
    sweeps.submit(*words, trains=trains)
    states, shown = sweeps.ended()
    rows = [[name, *[job for _, job in attempts(folder / name)]] for name in ("000", "001")]
    table(f"a time limit on OpenPBS, {resume}", [[line] for line in [*shown, *map(" ".join, rows)]])
    assert states == {"000": "done", "001": "done"}
    for _, first, *others in rows:
        assert others
        assert all("_" not in job for job in others) if resume == "chain" else {*others} == {first}
