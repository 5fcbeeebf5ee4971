"""Kills during saves of a sharded model: the checkpoint before, or the new one, is whole, and the next attempt uses it.

strace kills a rank on entry to a system call of the thread that writes its shards, or of rank 0's that publishes the
checkpoint. Each kill ends one attempt of a run; the next attempt resumes, saves, and is killed in its second save.
SEED=N draws the same kills of all ranks again.
"""

import itertools
import os
import random
import re
import secrets
import select
import shutil
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from fork_ranks import GRACE
from messages import slugs
from session_runs import lines, words
from slipway.checkpoint.format import read_checkpoint
from slipway.checkpoint.store import CheckpointStore, find_checkpoint
from support import LIMIT, started

RANKS, KEEP = 3, 3
SETUP = ["--samples", "24", "--epochs", "100000"]
"""Two steps an epoch. Each step is saved; the best checkpoint is that of step 2."""
PRELOAD = ("torch.distributed.fsdp", "torch.distributed.tensor.parallel")
CONTENT = {"manifest.json", "optimizer.safetensors", *(f"shards.{rank}.safetensors" for rank in range(RANKS))}
"""Files of a checkpoint; the optimizer's counts of steps are not sharded."""
FILES = "trace=%file,%desc"
"""All calls that take a path or a descriptor."""
READING = {
    *("fstat", "newfstatat", "read", "readlink", "stat", "statx"),
    *("close", "fcntl", "getdents64", "ioctl", "lseek"),
}
"""Calls that change nothing on disk: a kill there leaves what a kill at the next other call leaves."""
SEED = int(os.environ.get("SEED", secrets.randbelow(10**6)))


class Victim(NamedTuple):
    """A thread of a rank that strace follows."""

    rank: int
    thread: str


SHARDS = Victim(2, "shard writer")
COMMIT = Victim(0, "checkpoint writer")


class Saves:
    """A run that is killed and resumed again and again, and is checked after each attempt."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.trace = folder / "run", folder / "trace"
        self.store = CheckpointStore(self.folder / "checkpoints", keep=KEEP)
        self.said = ""
        folder.mkdir(exist_ok=True)
        self.folder.mkdir(exist_ok=True)

    @property
    def newest(self) -> int:
        """Step of the newest checkpoint, valid or not; 0 if there is none."""
        found = self.store.newest_folder()
        return int(found.name.removeprefix("step_")) if found else 0

    def begin(self, step: int) -> None:
        """Train up to ``step`` in one attempt."""
        with self._started("sharded", "--stop-at", str(step)) as launch:
            assert launch.wait() == 0, launch.output
        assert self._checked() == step
        assert not self._hidden()

    @contextmanager
    def traced(self, victim: Victim, *expressions: str, stop_at: int):
        """Start an attempt whose second save is traced."""
        flags = [word for expression in expressions for word in ("-e", expression)]
        self.trace.unlink(missing_ok=True)
        place = ["--rank", str(victim.rank), "--thread", victim.thread, "--log", str(self.trace)]
        with self._started("sharded_traced", *place, *flags, "--stop-at", str(stop_at)) as launch:
            yield launch
        self.said = launch.output

    def killed_at(self, victim: Victim, call: str, number: int, *, all_ranks: bool = False) -> str:
        """Kill the second save of an attempt on entry to a call; return which checkpoint is left.

        Returns:
            "before" or "new"; "" if the save came through because it has fewer of these calls.
        """
        opened, hidden = self.newest, self._hidden()
        inject = f"inject={call}:signal=KILL:when={number}"
        with self.traced(victim, f"trace={call}", inject, stop_at=opened + 3) as launch:
            if all_ranks:
                kill_with(launch, victim.rank)
            code = launch.wait()
        ended = time.time()
        killed = "killed by SIGKILL" in self.trace.read_text()
        left = self._checked()
        assert not hidden & self._hidden(), "the first save of the attempt did not clear what a kill had left"
        if not killed:
            assert (code, left) == (0, opened + 3), self.said
            assert not self._hidden()
            return ""
        assert code != 0
        assert ended - self.trace.stat().st_mtime < GRACE, f"other ranks did not end:\n{self.said}"
        assert left in (opened + 1, opened + 2), self.said
        if victim == SHARDS:
            assert left == opened + 1, "a checkpoint was published before all ranks had reported"
            assert all_ranks or "checkpoint-not-written" in slugs(self.said)
        return "before" if left == opened + 1 else "new"

    def _started(self, script: str, *flags: str):
        log = self.folder.with_name(f"log.{time.monotonic_ns()}")
        return started(words(script, RANKS, *SETUP, *flags), log, preload=PRELOAD, RUN_DIR=str(self.folder))

    def _hidden(self) -> set[str]:
        return {path.name for path in self.store.path.glob(".*")}

    def _checked(self) -> int:
        """Return the step of the newest checkpoint, after verifying all checkpoints and all resumed states."""
        found = find_checkpoint("auto", self.store)
        paths = self.store.newest_first()
        assert found is not None
        assert found.header.position.step == self.newest
        for path in paths:
            assert read_checkpoint(path).sharded
            assert {file.name for file in path.iterdir()} == CONTENT
        kept = {*range(self.newest, max(self.newest - KEEP, 0), -1), *({2} if self.newest >= 2 else ())}
        steps = {int(path.name.removeprefix("step_")) for path in paths}
        unpruned = {self.newest - KEEP} - {0}  # the kill came before it was removed
        assert kept <= steps <= kept | unpruned, steps
        states = lines(self.folder, "states")
        digests = {step: digest for what, step, digest in states if what == "stepped"}
        for what, step, digest in states:
            assert not step or digests[step] == digest, f"{what} at step {step} in another state"
        return self.newest


def kill_with(launch, rank: int) -> None:
    """Kill all processes of ``launch`` at the moment at which ``rank`` is killed."""
    launch.until(lambda: all(launch.rank_pids(each) for each in range(RANKS)), "start of all ranks")
    pids, watched = launch.pids(), os.pidfd_open(launch.rank_pid(rank))
    assert select.select([watched], [], [], LIMIT)[0], "the rank was not killed"
    for pid in pids:
        with suppress(ProcessLookupError):  # the killed rank
            os.kill(pid, signal.SIGKILL)
    os.close(watched)


def calls_of(victim: Victim, saves: Saves) -> dict[str, int]:
    """Return how often each system call occurs in a save by ``victim``."""
    with saves.traced(victim, FILES, stop_at=saves.newest + 3) as launch:
        assert launch.wait() == 0, launch.output
    found = [call[1] for line in saves.trace.read_text().splitlines() if (call := re.match(r"(\w+)\(", line))]
    return {call: found.count(call) for call in sorted({*found})}


@pytest.fixture
def saves(tmp_path) -> Saves:
    """Return a run with more checkpoints than are kept, so that each save also prunes one."""
    saves = Saves(tmp_path)
    saves.begin(KEEP + 2)
    return saves


def test_rank_killed_while_it_writes_leaves_the_checkpoint_before(saves):
    assert saves.killed_at(SHARDS, "fsync", 1) == "before"
    saves.begin(saves.newest + 1)


def test_rank_0_killed_around_the_rename_that_publishes(saves):
    publish, latest = 2, 3  # the first rename is the manifest's
    assert saves.killed_at(COMMIT, "rename", publish) == "before"
    assert saves.killed_at(COMMIT, "rename", latest) == "new"
    saves.begin(saves.newest + 1)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param("signal=STOP", marks=pytest.mark.prove, id="stopped"),
        pytest.param("delay_enter=600s", id="hung-disk"),
    ],
)
def test_rank_that_never_reports_leaves_the_checkpoint_before(fault, saves):
    """A stopped process stands still. With a hung disk only its writing thread does, and the training goes on."""
    opened = saves.newest
    written = f".step_{opened + 2:08d}.*/shards.{SHARDS.rank}.safetensors"
    with saves.traced(SHARDS, "trace=fsync", f"inject=fsync:{fault}:when=1", stop_at=opened + 3) as launch:
        launch.until(lambda: [*saves.store.path.glob(written)], "a shard's file")
        time.sleep(1)  # the others wait for the report
        assert launch.process.poll() is None
        assert saves.newest == opened + 1
        assert "checkpoint-not-written" not in slugs(launch.output)
        (tracer,) = (pid for pid in launch.pids() if Path(f"/proc/{pid}/comm").read_text() == "strace\n")
        os.kill(launch.rank_pid(SHARDS.rank), signal.SIGKILL)
        os.kill(tracer, signal.SIGKILL)  # otherwise the killed thread would still wait for the end of the delay
        assert launch.wait(GRACE) != 0
    assert slugs(saves.said).count("checkpoint-not-written") == 1
    assert saves.newest == opened + 1
    saves.begin(opened + 2)


@pytest.mark.prove
@pytest.mark.parametrize("reading", [False, True], ids=["changes", "reads"])
@pytest.mark.parametrize("victim", [SHARDS, COMMIT], ids=["shards", "commit"])
def test_rank_killed_at_each_call(victim, reading, saves, table):
    calls = calls_of(victim, saves)
    needed = {"write", "fsync", "openat", "chmod"} | ({"rename", "unlinkat", "symlink"} if victim == COMMIT else set())
    assert needed <= {*calls}
    rows = []
    for call in calls:
        if (call in READING) != reading:
            continue
        left = [*itertools.takewhile(bool, (saves.killed_at(victim, call, number) for number in itertools.count(1)))]
        assert len(left) == calls[call]
        assert left == sorted(left), f"the new checkpoint was published and then lost: {left}"
        before, new = left.count("before"), left.count("new")
        rows.append([call, f"{len(left)} kills", f"{before} left the one before", f"{new} the new one"])
        print(*rows[-1], flush=True)
        assert victim == COMMIT or not new
        assert call != "rename" or (before, new) == (2, 3)  # manifest and publication; latest, best and pruning
    table(f"rank {victim.rank} killed in its {victim.thread} at each", rows)


@pytest.mark.prove
def test_all_ranks_killed_at_drawn_calls(saves, table):
    print(f"SEED={SEED}")
    draw = random.Random(SEED)
    counts = {(victim, call): count for victim in (SHARDS, COMMIT) for call, count in calls_of(victim, saves).items()}
    rows = []
    for victim, call in draw.sample([*counts], 8):
        number = draw.randint(1, counts[victim, call])
        left = saves.killed_at(victim, call, number, all_ranks=True)
        assert left
        rows.append([victim.thread, f"{call} {number}", f"left {left}"])
        print(*rows[-1], flush=True)
    saves.begin(saves.newest + 1)
    table(f"all ranks killed at once, SEED={SEED}", rows)


@pytest.mark.prove
@pytest.mark.parametrize("call", ["rename", "unlinkat"])
def test_replacement_of_the_same_step_killed(call, tmp_path, table):
    """A stop after an epoch's last step saves that step, and again at the epoch's end, with the metric."""
    whole = Saves(tmp_path / "whole")
    whole.begin(5)
    left = []
    for number in itertools.count(1):
        saves = Saves(tmp_path / str(number))
        shutil.copytree(whole.folder, saves.folder, symlinks=True, dirs_exist_ok=True)
        shutil.copy(whole.folder.with_name("run.states"), saves.folder.parent)
        with saves.traced(COMMIT, f"trace={call}", f"inject={call}:signal=KILL:when={number}", stop_at=6) as launch:
            launch.wait()
        found = find_checkpoint("auto", saves.store)
        assert found is not None
        assert found.header.position.step == 6
        saves.begin(8)
        if "killed by SIGKILL" not in saves.trace.read_text():
            break
        left.append("new" if found.header.metric else "before")
        shutil.rmtree(saves.folder)
    assert left == sorted(left)
    assert {*left} == {"before", "new"} if call == "rename" else {"new"}
    table(f"{call} of a replacement", [[f"{len(left)} kills", f"{left.count('before')} left the one before"]])
