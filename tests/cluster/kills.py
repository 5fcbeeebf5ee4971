"""A hundred kills in the middle of jobs on four nodes and a spare one.

A fixed seed selects each kill's target, time and node before the first job starts. ``test_kills.py`` runs the jobs.
"""

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import recovery
from clusters import Cluster, Job, until
from recovery import MOMENTS, RANK, Kill, Outcome, last_step
from support import digest

SEED = 19
SLOW_DATA = Path(__file__).parent / "foreign" / "slow_data.py"
"""The module that CONFIG trains; a job finds it in the submission folder."""
NODES = 4
"""Number of nodes that train, plus one spare node."""
PROCESSES = ("rank", "launcher", "apptainer")
NODE_LOSSES = ("slurmd", "node", "network")
BATCH_HOST = "batch host"
JOBS = 36

CONFIG = """
[data]
dataset = "slow_data:noise"
[model]
arch = "slow_data:net"
[optim]
optimizer = "adamw"
[train]
epochs = {epochs}
batch_size = 96
val_batch_size = 8
[run]
log_interval = 1
[launch]
collective_timeout = {collective_timeout}
"""
"""An epoch takes at least 2 s. Evaluation and save take long enough for kills to hit them."""
STEPS_PER_EPOCH = 10
EPOCH_SECONDS = 2
EPOCHS_FOR_A_KILL = 5
UNDISTURBED = 60
"""Seconds after which a job that still saves checkpoints counts as undisturbed: with a long SlurmdTimeout, Slurm takes
minutes to detect a dead slurmd."""


def plan(seed: int = SEED) -> list[list[Kill]]:
    """Return the kills of each job, 100 in all."""
    draw = random.Random(seed)
    jobs = []
    for number in range(JOBS):
        # only a job with apptainer can lose it
        processes = ["apptainer"] if in_container(number) else ["rank", "launcher"]
        whats = [processes[(number // 3 + extra) % len(processes)] for extra in range(1 + number % 2)]
        whats.append(NODE_LOSSES[number // 3 % 3])
        draw.shuffle(whats)
        if number % 18 in {1, 4, 8, 11, 15}:  # after this kill the job has all nodes again
            whats.insert(draw.randrange(len(whats) + 1), BATCH_HOST)
        moments = draw.sample(MOMENTS, len(whats))
        moments.sort(key=lambda moment: moment != "start")  # a job starts once
        jobs.append(
            [Kill(what, moment, draw.random(), draw.random()) for what, moment in zip(whats, moments, strict=True)]
        )
    return jobs


def in_container(job: int) -> bool:
    return job % 3 == 0


def epochs(kills: list[Kill], slurmd_timeout: int) -> int:
    """Return how long a job must train so that all ``kills`` reach it."""
    slurmds = sum(kill.what == "slurmd" for kill in kills)  # it continues until Slurm detects the loss
    unnoticed = min(slurmd_timeout + 30, UNDISTURBED + 10)
    return 4 + EPOCHS_FOR_A_KILL * len(kills) + slurmds * unnoticed // EPOCH_SECONDS


def config(folder: Path, epochs: int, collective_timeout: str = "600") -> Path:
    """Return a configuration with the given epochs and timeout of ranks in seconds."""
    path = folder / f"{epochs}.toml"
    path.write_text(CONFIG.format(epochs=epochs, collective_timeout=collective_timeout))
    return path


class Campaign:
    """A job and the kills done to it."""

    def __init__(self, cluster: Cluster, job: Job, out: Path) -> None:
        self.cluster, self.job, self.out = cluster, job, out
        self.gone: dict[str, str] = {}
        """Nodes that the job has lost, and the cause."""

    def on(self, node: str, *words: str) -> str:
        return self.cluster.control("on", node, *words)

    def nodes(self) -> list[str]:
        """Return the nodes of the last launch, from the job log."""
        said = re.findall(r"on each of \d+ node\(s\) \((.*?)\)", self.job.output)
        return said[-1].split(", ") if said else [f"node{number + 1}" for number in range(NODES)]

    # The moments.

    def reach(self, kill: Kill) -> None:
        """Wait for the moment of ``kill``."""
        getattr(self, f"_{kill.moment}")(kill)

    def _start(self, kill: Kill) -> None:
        self.job.until("attempt 1 in ")
        time.sleep(12 * kill.delay)

    def _training(self, kill: Kill) -> None:
        self._saved_once_more()
        time.sleep(2 * kill.delay)

    def _evaluation(self, kill: Kill) -> None:
        self._saved_once_more()
        step = last_step(self.out)
        self._poll(lambda: last_step(self.out) > step and last_step(self.out) % STEPS_PER_EPOCH == 0)
        time.sleep(0.3 * kill.delay)

    def _save(self, kill: Kill) -> None:
        self._saved_once_more()
        self._poll(lambda: any((self.out / "checkpoints").glob(".step_*")))
        time.sleep(0.1 * kill.delay)

    def _restart(self, kill: Kill) -> None:
        self._saved_once_more()
        restarts = self.job.output.count(" restart ")
        self._kill_rank(self.nodes()[-1])
        self.job.until(" restart ", times=restarts + 1)
        time.sleep(12 * kill.delay)

    def _saved_once_more(self) -> None:
        before = self._saves()
        self._poll(lambda: self._saves() != before)

    def _saves(self) -> str:
        latest = self.out / "checkpoints" / "latest"
        return str(latest.readlink()) if latest.is_symlink() else ""

    def _poll(self, condition: Callable[[], bool], limit: float = 200) -> None:
        assert until(condition, limit=limit, pause=0.005) is not None, f"not within {limit} s:\n{self.job.output}"

    # The kills.

    def strike(self, kill: Kill) -> None:
        """Execute the kill."""
        host = self.job.fields["BatchHost"]
        candidates = [node for node in self.nodes() if kill.what in PROCESSES or node != host]
        node = host if kill.what == BATCH_HOST else candidates[int(kill.place * len(candidates))]
        if kill.what not in PROCESSES:
            self.gone[node] = kill.what
        match kill.what:
            case "rank":
                self._kill_rank(node)
            case "launcher" if kill.delay < 0.5:
                recovery.strike(self.cluster, kill.what, host, "--oldest", "--full", f"^srun --nodes={NODES} ")
            case "launcher":
                recovery.strike(self.cluster, kill.what, node, "--oldest", "--full", "[t]orchrun .*trainer")
            case "apptainer":
                recovery.strike(self.cluster, kill.what, node, "--oldest", "--full", "[A]pptainer runtime parent")
            case _:
                recovery.strike(self.cluster, kill.what, node)

    def _kill_rank(self, node: str) -> None:
        recovery.strike(self.cluster, "rank", node, *RANK)

    # The outcome.

    def watch(self, outcome: Outcome) -> None:
        """Fill in ``outcome``: wait until the job has detected the kill, and trains again or has ended."""
        began = time.monotonic()
        notices, announced, requeued = self._notices(), self._announced(), self._requeues()
        while self.job.state not in self.job.ended:
            if outcome.noticed is None and (self._notices() > notices or self._requeues() > requeued):
                outcome.noticed = time.monotonic() - began
                outcome.how = "requeue" if self._requeues() > requeued else "restart"
                # like an administrator; the job needs all nodes to start again
                if outcome.how == "requeue":
                    self.repair()
            if outcome.noticed is not None and self._announced() > announced:
                step = last_step(self.out)
                self._poll(lambda step=step: last_step(self.out) != step)
                outcome.trains_again = time.monotonic() - began
                return
            if outcome.noticed is None and time.monotonic() > began + UNDISTURBED and self._saves_still():
                break
            if time.monotonic() > began + 3 * outcome.slurmd_timeout + 180:
                outcome.failure = "hangs"
                return
            time.sleep(0.2)
        if outcome.noticed is None:
            outcome.how = "went on"

    def _saves_still(self) -> bool:
        latest = self.out / "checkpoints" / "latest"
        return latest.is_symlink() and latest.lstat().st_mtime > time.time() - 10

    def _notices(self) -> int:
        return len(re.findall(r"attempt \d+: ", self.job.output))

    def _announced(self) -> int:
        return len(re.findall(r"\d rank\(s\) on cpu: ", self.job.output))

    def _requeues(self) -> int:
        return int(self.job.fields["Restarts"])

    def repair(self) -> None:
        """Restore the lost nodes and processes."""
        for node, how in self.gone.items():
            recovery.repair(self.cluster, how, node)
        self.gone.clear()

    def left_over(self) -> list[str]:
        """Return the job's remains on nodes, including disconnected ones, after they had time to clean up."""
        for node, how in self.gone.items():
            if how == "network":
                self.cluster.control("reconnect", node)
        nodes = (f"node{number}" for number in range(1, NODES + 2))
        return self.cluster.left_over(nodes=[node for node in nodes if self.gone.get(node) not in {"node", BATCH_HOST}])


def run_job(campaign: Campaign, kills: list[Kill], outcomes: list[Outcome], *, whole: str) -> None:
    """Execute ``kills`` on a job and fill in ``outcomes``; its weights should then have the digest ``whole``."""
    for outcome in outcomes:
        outcome.failure = "not reached"
    for kill, outcome in zip(kills, outcomes, strict=True):
        campaign.reach(kill)
        campaign.strike(kill)
        outcome.failure = ""
        campaign.watch(outcome)
        if outcome.failure:
            return
    campaign.job.ends(limit=900)
    failure = "" if digest(campaign.out / "checkpoints" / "latest") == whole else "other weights"
    if left := campaign.left_over():
        failure += f" left: {left}"
    for outcome in outcomes:
        outcome.failure = failure.strip()
