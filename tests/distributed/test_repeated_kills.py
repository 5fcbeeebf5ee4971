"""Scripts with a session: killed repeatedly by KILL, TERM and STOP, they end with the bytes of an uninterrupted run.

Each script of tests/scripts/session is run whole, and again with kills at random moments, each of which the next
attempt resumes from; SEED=N draws the same ones, as far as time allows. Compared are weights, states, metrics.jsonl
without its times, and all that the script prints.
"""

import os
import random
import secrets
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

import pytest

import changed_lines
from messages import slugs
from session_runs import SCRIPTS, content, differences, saved_step
from support import INSIDE, ROOT, launch_words, started, status

SEED = int(os.environ.get("SEED", secrets.randbelow(10**6)))
FEW, MANY = 2, 10
"""Kills per run, in `make test` and in `make prove`."""
LIMIT = 120.0
"""Seconds that an attempt may take."""
PACES = (1, 4, 16, 64)
"""Factor by which killed runs may train faster than the whole run, on a machine with varying load."""
FEW_RUNS = [
    ("classifier", 1, "--workers 2 --persistent --accumulate 2"),
    ("classifier", 2, "--workers 1"),
    ("nanogpt", 1, ""),
    ("dcgan", 1, "--workers 2"),
    ("sharded", 2, "--epochs 4"),
]
TEN = {
    "language_model": "--epochs 20",
    "vae": "--epochs 20",
    "time_series": "--steps 40",
    "reinforce": "",
    "siamese": "--epochs 10",
    "dcgan": "--epochs 10",
    "nanogpt": "--steps 600",
    "accelerate_example": "--epochs 10",
    "lightning_example": "--epochs 30",
    "reference": "--epochs 12",
}
"""Typical user scripts that run for some seconds; tests/scripts/plain has each without a session."""
INEXACT = ("lightning_example", 1)
"""Without a DistributedSampler Lightning draws a new order in each attempt: see below."""
MANY_RUNS = [
    *[(name, ranks, flags) for name, flags in TEN.items() for ranks in (1, 2) if (name, ranks) != INEXACT],
    ("classifier", 1, "--workers 2 --persistent --accumulate 2 --epochs 8"),
    ("classifier", 2, "--workers 1 --epochs 8"),
    ("classifier", 4, "--accumulate 3 --epochs 12"),
    ("mnist", 1, "--epochs 15"),
    ("uneven", 2, ""),
    ("sharded", 3, "--epochs 20"),
    *(("sharded", 4, f"--kind {kind} --epochs 20") for kind in ("fsdp", "hsdp", "tp", "mixed")),
    ("llm", 4, f"--text {ROOT}/LICENSE --vocabulary 300 --sequence 16 --batch 24 --micro-batch 2 --epochs 30"),
]
RECIPES = {"llm": ROOT / "examples" / "llm" / "train.py"}
"""Scripts that are not in tests/scripts/session."""
PRELOAD = {
    "accelerate_example": ["accelerate"],
    "lightning_example": ["lightning.pytorch"],
    "llm": ["transformers.models.llama.modeling_llama", "transformers.models.gpt2.tokenization_gpt2"],
}


class Case(NamedTuple):
    """A script and its number of kills."""

    name: str
    ranks: int
    flags: str
    kills: int


def cases():
    for kills, runs, mark in [(FEW, FEW_RUNS, pytest.mark.core), (MANY, MANY_RUNS, pytest.mark.prove)]:
        for name, ranks, flags in runs:
            words = [name, str(ranks), str(kills), *flags.replace("-", "").replace(f"{ROOT}/", "").split()]
            yield pytest.param(Case(name, ranks, flags, kills), marks=mark, id="-".join(words))


class Whole(NamedTuple):
    """An uninterrupted run."""

    content: dict
    printed: list[str]
    step: int
    opening: float
    """Seconds until the run folder was opened."""
    training: float
    """Seconds from there to the end."""


class Runs:
    """Attempts of a script in one folder."""

    def __init__(self, case, folder):
        self.folder, self.ranks = folder, case.ranks
        self._printed, self._preload = folder.with_suffix(".stdout"), PRELOAD.get(case.name, ())
        script = RECIPES.get(case.name, SCRIPTS / f"{case.name}.py")
        program = [str(ROOT / "tests" / "stdout_to.py"), str(self._printed), str(script)]
        alone = [*INSIDE, "python" if INSIDE else sys.executable, *program]
        ranks = launch_words("forked", case.ranks, program=program)[:-1]
        self._words = [*(alone if case.ranks == 1 else ranks), *case.flags.split()]
        self._attempts = 0

    def attempt(self):
        self._attempts += 1
        log = self.folder.with_suffix(f".{self._attempts}.log")
        return started(self._words, log, preload=self._preload, RUN_DIR=str(self.folder))

    def finish(self):
        with self.attempt() as launch:
            assert launch.wait(LIMIT) == 0, launch.output
        return launch.output

    @property
    def printed(self):
        return self._printed.read_text().splitlines()


def is_open(launch):
    return "run folder" in launch.output


def run_whole(runs):
    with runs.attempt() as launch:
        began = time.monotonic()
        launch.until(lambda: is_open(launch), "the opening")
        opened = time.monotonic()
        assert launch.wait(LIMIT) == 0, launch.output
    ended = time.monotonic()
    step = status(runs.folder)["step"]
    return Whole(content(runs.folder), runs.printed, step, opened - began, ended - opened)


def kill(launch, runs, draw):
    """Kill one rank, so that the launcher ends the others, or all ranks at once."""
    if runs.ranks > 1 and draw.random() < 0.5:
        with suppress(ProcessLookupError):  # it has just ended
            for victim in launch.rank_pids(draw.randrange(runs.ranks))[:1]:
                os.kill(victim, signal.SIGKILL)
            launch.wait(LIMIT)
    launch.kill()


def terminate(launch, runs, draw):
    """Send SIGTERM to one rank, or to all processes, as schedulers do."""
    one = launch.rank_pids(draw.randrange(runs.ranks))[:1] if runs.ranks > 1 and draw.random() < 0.5 else []
    in_order = is_open(launch)
    for pid in one or launch.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    code = launch.wait(LIMIT)
    if in_order and not is_done(runs.folder):  # otherwise the signal came before its handler was set, or after the end
        assert code == (75 if runs.ranks == 1 else 0), launch.output
        assert status(runs.folder)["state"] == "stopped", launch.output
    launch.kill()


def stop(launch, runs, _draw):
    """Stop the run with the file STOP, like a user, while it trains."""
    while not is_open(launch) and launch.process.poll() is None:
        time.sleep(0.005)
    (runs.folder / "STOP").write_text("user")
    assert launch.wait(LIMIT) in {0, 75}, launch.output
    (runs.folder / "STOP").unlink(missing_ok=True)


def is_done(folder):
    return (folder / "status.json").exists() and status(folder)["state"] == "done"


WAYS = [kill, terminate, kill, terminate, stop]
"""In these parts: a run looks at STOP once a second, in which the short ones here come far."""


class Broken(NamedTuple):
    """A run that was killed and then finished."""

    content: dict
    printed: list[str]
    steps: list[str]
    """How the run was killed, and the step from which it then continued."""
    slugs: set[str]
    """Slugs of the warnings and errors of all attempts."""


def run_broken(runs, whole, ways, draw, pace):
    """Kill a run in each of the ways, in random order and at random moments, and finish it.

    ``pace`` is how fast it is expected to train, of the whole one's: a run that is faster is done before all kills.
    """
    steps, warned = [], set()
    moments = sorted(draw.uniform(0, 0.65) for _ in ways)
    for way, moment in zip(draw.sample(ways, len(ways)), moments, strict=True):

        def ahead(moment=moment):
            return moment - saved_step(runs.folder) / whole.step

        with runs.attempt() as launch:
            if (left := ahead()) > 0:
                launch.until(lambda launch=launch: is_open(launch), "the opening")
                deadline = time.monotonic() + left * whole.training / pace
                while time.monotonic() < deadline and ahead() > 0:
                    time.sleep(0.005)
            else:  # it is past that point: kill it before it trains, or soon after
                time.sleep(draw.uniform(0, 2 * whole.opening))
            if launch.process.poll() is None:
                way(launch, runs, draw)
        warned.update(slugs(launch.output))
        steps.append(f"{way.__name__} {saved_step(runs.folder)}")
        print(f"SEED={SEED}: {steps[-1]} of {whole.step}")
        if is_done(runs.folder):
            break
    warned.update(slugs(runs.finish()))
    return Broken(content(runs.folder), runs.printed, steps, warned)


def killed_in_a_row(case, ways, folder, table):
    """Run a script uninterrupted, then killed, until one run has the requested number of kills; return all runs."""
    draw = random.Random(f"{SEED} {case}")
    whole, broken = run_whole(Runs(case, folder / "whole")), []
    for pace in PACES:
        runs = Runs(case, folder / f"broken-{pace}")
        broken.append(now := run_broken(runs, whole, (ways * case.kills)[: case.kills], draw, pace))
        told = f"of {whole.step} steps {' '.join(sorted(now.slugs))}"
        table(f"{case.name} x {case.ranks}, SEED={SEED}: {', '.join(now.steps)} {told}", [])
        if len(now.steps) == case.kills:
            break
    return whole, broken


@pytest.mark.parametrize("case", list(cases()))
def test_repeatedly_killed_run_matches_uninterrupted_run(case, tmp_path, table):
    ways = [kill] if case.name == "lightning_example" else WAYS  # see below
    whole, broken = killed_in_a_row(case, ways, tmp_path, table)
    for each in broken:
        assert differences(whole.content, each.content) == []
        assert {*each.printed} == {*whole.printed}
        assert each.printed[-1:] == whole.printed[-1:]
    assert len(broken[-1].steps) == case.kills  # otherwise even the last run ended too early


@pytest.mark.prove
@pytest.mark.parametrize("ranks", [1, 2])
def test_lightning_stopped_in_mid_epoch_trains_same_number_of_steps(ranks, tmp_path, table):
    """Its loops restart the loader, and it does not save generators: the table lists the resulting differences."""
    case = Case("lightning_example", ranks, TEN["lightning_example"], MANY)
    whole, broken = killed_in_a_row(case, WAYS, tmp_path, table)
    found = differences(whole.content, broken[-1].content)
    table(f"lightning_example x {ranks}, stopped in mid-epoch: numbers that differ", _counted(found))
    assert {part for part, _ in _counted(found)} <= {"state_dict", "optimizer_states"}


@pytest.mark.core
def test_session_replaces_at_most_one_line_in_ten(table):
    head, *rows = changed_lines.rows()
    table("lines changed for a session, and without those indented", [head, *rows])
    assert {*TEN} <= {name for name, *_ in rows}
    assert [row for row in rows if int(row[3].split()[0]) < -int(row[1]) / 10] == []


def _counted(found):
    return sorted(Counter(place.split("/")[1] for place in found).items())
