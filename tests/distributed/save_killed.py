"""Save a checkpoint under strace again and again, killed at the first, second, third ... call of one kind.

    python save_killed.py FOLDER CALL...

After each kill the newest checkpoint must be valid and complete, and another save must work. So too where the save
replaces the only checkpoint there is, of the same step. Each save is a fork of this process, which has torch loaded
already.
"""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from slipway.checkpoint.folder import Checkpoint
from slipway.checkpoint.header import Header, Metric
from slipway.checkpoint.store import CheckpointStore, find_checkpoint
from slipway.position import Position

torch.set_num_threads(1)  # a fork has no thread pool, and would wait for one


def checkpoint(step: int) -> Checkpoint:
    tensors = {name: torch.full((300, 300), float(step)) for name in ("first", "second")}
    header = Header(Position(step=step), Metric("accuracy", step / 100))
    return Checkpoint({"model": tensors, "optimizer": tensors}, header)


def save_in_fork(store: CheckpointStore, step: int) -> tuple[int, int]:
    """Fork a child that saves ``step`` once a byte is sent; return its pid and the pipe to send it through."""
    receiver, sender = os.pipe()
    if pid := os.fork():
        os.close(receiver)
        return pid, sender
    pr_set_ptracer, anyone = 0x59616D61, -1  # prctl(2): where Yama restricts ptrace, let strace attach
    ctypes.CDLL(None).prctl(pr_set_ptracer, anyone)
    os.read(receiver, 1)
    store.add(checkpoint(step))
    os._exit(0)


def killed_at(call: str, number: int, store: CheckpointStore, step: int) -> bool:
    """Save ``step``, killed on entry to the given call; return whether it came to that."""
    pid, sender = save_in_fork(store, step)
    inject = [f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}"]
    tracer = subprocess.Popen(["strace", "-f", "-q", "-o", "/dev/null", "-e", *inject, "-p", str(pid)])
    deadline = time.monotonic() + 20
    while "TracerPid:\t0" in Path(f"/proc/{pid}/status").read_text():
        assert tracer.poll() is None, "strace ended"
        assert time.monotonic() < deadline, "strace does not attach"
        time.sleep(0.002)
    os.write(sender, b".")
    os.close(sender)
    _, outcome = os.waitpid(pid, 0)
    tracer.wait(20)
    assert outcome in (0, signal.SIGKILL), outcome
    return outcome != 0


def kill_at_each(call: str, folder: Path) -> None:
    folder.mkdir()
    store = CheckpointStore(folder, keep=2)
    for step in (1, 2):
        store.add(checkpoint(step))
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
    for name in sys.argv[2:]:
        kill_at_each(name, Path(sys.argv[1]) / name)
    for name in ("rename", "unlinkat"):
        kill_replacement_at_each(name, Path(sys.argv[1]) / f"{name}-replaced")
