"""Save a checkpoint under strace repeatedly, and kill it at each system call of a save.

    python save_killed.py FOLDER

A first save tells which calls there are: then, of each, the first, the second, the third ... until a save comes
through. After each kill the newest checkpoint must be valid and complete, and another save must work. So too where the
save replaces the only checkpoint there is, of the same step. Each save is a fork of this process, which has torch
loaded already.
"""

import ctypes
import itertools
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Metric, Position
from slipway.checkpoint.store import CheckpointStore, find_checkpoint

torch.set_num_threads(1)  # a fork has no thread pool and would wait for it


def checkpoint(step: int) -> Checkpoint:
    tensors = {name: torch.full((300, 300), float(step)) for name in ("first", "second")}
    header = Header(Position(step=step), Metric("accuracy", step / 100))
    return Checkpoint({"model": tensors, "optimizer": tensors}, header)


def save_in_fork(store: CheckpointStore, step: int) -> tuple[int, mmap.mmap]:
    """Fork a child that saves ``step`` when the first byte of shared memory is set; return its pid and the memory.

    It makes no system call until then, so the calls that strace counts are the save's alone.
    """
    begin = mmap.mmap(-1, 1)
    if pid := os.fork():
        return pid, begin
    prctl = ctypes.CDLL(None).prctl
    pr_set_pdeathsig, pr_set_ptracer, anyone = 1, 0x59616D61, -1  # prctl(2)
    prctl(pr_set_pdeathsig, signal.SIGKILL)
    prctl(pr_set_ptracer, anyone)  # lets strace attach if Yama restricts ptrace
    while not begin[0]:
        pass
    store.add(checkpoint(step))
    os._exit(0)


def store_with_two(folder: Path) -> CheckpointStore:
    """Return a store with the maximum of two checkpoints, so that the next save replaces one."""
    folder.mkdir()
    store = CheckpointStore(folder, keep=2)
    for step in (1, 2):
        store.add(checkpoint(step))
    return store


def save_traced(store: CheckpointStore, step: int, *expressions: str, log: Path = Path(os.devnull)) -> bool:
    """Save ``step`` under strace with the ``expressions`` of its option -e; return whether it was killed."""
    pid, begin = save_in_fork(store, step)
    options = [word for expression in expressions for word in ("-e", expression)]
    tracer = subprocess.Popen(["strace", "-f", "-q", "-o", log, *options, "-p", str(pid)])
    deadline = time.monotonic() + 300
    while "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text():
        assert tracer.poll() is None, "strace ended"
        assert time.monotonic() < deadline, "strace does not attach"
        time.sleep(0.002)
    begin[0] = 1
    _, outcome = os.waitpid(pid, 0)
    tracer.wait(300)
    assert outcome in (0, signal.SIGKILL), outcome
    return outcome != 0


def killed_at(call: str, number: int, store: CheckpointStore, step: int) -> bool:
    """Save ``step`` and kill it on entry to the given call; return whether this happened."""
    return save_traced(store, step, f"trace={call}", f"inject={call}:signal=KILL:when={number}")


def calls_of_a_save(folder: Path) -> list[str]:
    log = folder / "calls"
    assert not save_traced(store_with_two(folder / "traced"), 3, log=log)
    called = (re.match(r"\d+ +(\w+)\(", line) for line in log.read_text().splitlines())
    return sorted({found[1] for found in called if found} - {"exit_group"})


def kill_at_each(call: str, folder: Path) -> None:
    store = store_with_two(folder)
    kills = {"before": 0, "after": 0}
    for number in itertools.count(1):
        newest = store.newest().header.position.step
        killed = killed_at(call, number, store, newest + 1)
        found = store.newest()
        step = found.header.position.step
        assert step in (newest, newest + 1), f"step {step} after killing the save of {newest + 1}"
        assert killed or step == newest + 1
        assert all(bool((tensor == step).all()) for tensor in found.tensors["model"].values())
        assert store.newest().header == found.header
        if not killed:
            break
        kills["before" if step == newest else "after"] += 1
        store.add(checkpoint(step + 1))
        assert store.newest().header.position.step == step + 1
    print(f"{call}: {number - 1} kills, {kills['before']} left the one before, {kills['after']} the new one; all valid")


def kill_replacement_at_each(call: str, folder: Path) -> None:
    folder.mkdir()
    store = CheckpointStore(folder, keep=2)
    store.add(checkpoint(1))
    for number in itertools.count(1):
        killed = killed_at(call, number, store, 1)
        found = find_checkpoint("auto", store)
        assert found is not None, f"none is found after kill {number}: {[path.name for path in folder.iterdir()]}"
        assert all(bool((tensor == 1).all()) for tensor in found.tensors["model"].values())
        if not killed:
            break
    print(f"{call} of a replacement: {number - 1} kills; there was one each time")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in calls_of_a_save(folder):
        kill_at_each(name, folder / name)
    for name in ("rename", "unlinkat"):
        kill_replacement_at_each(name, folder / f"{name}-replaced")
