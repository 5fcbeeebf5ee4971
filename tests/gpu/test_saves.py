"""A checkpoint taken while training continues at once: bitwise the state at the save."""

import contextlib
import time

import pytest
import torch

from savers import saving_into
from slipway.checkpoint import host_copies
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.store import CheckpointStore

GPU = torch.cuda.is_available()
SIZE = 1 << (24 if GPU else 14)
TENSORS = 4
WAYS = ["snapshot", "no room for a snapshot"] if GPU else ["on the CPU"]


def build(device):
    """Return a state of tensors of both layouts, 256 MB on a GPU, with a different number in each element."""
    numbers = torch.arange(SIZE, dtype=torch.int32).view(1, 4, -1, 64).view(torch.float32)
    state = {str(number): (numbers.clone() + number).to(device) for number in range(TENSORS)}
    state["0"] = state["0"].to(memory_format=torch.channels_last)
    return state


def change(state):
    for tensor in state.values():
        tensor.mul_(0).sub_(1)


def on(stream):
    """Return a context in which operations run on ``stream``; the current one does not wait for another one."""
    return torch.cuda.stream(torch.cuda.Stream()) if GPU and stream == "another stream" else contextlib.nullcontext()


def busy():
    """Keep the current stream busy, so that later operations on it run after those of other streams."""
    if GPU:
        torch.cuda._sleep(50_000_000)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stream", ["the same stream", "another stream"])
def test_checkpoint_holds_state_at_save(way, stream, tmp_path, *, device, record, monkeypatch):
    if way == "no room for a snapshot":
        monkeypatch.setattr(host_copies, "take_snapshot", lambda *_: [])
    (tmp_path / "checkpoints").mkdir()
    store, state = CheckpointStore(tmp_path / "checkpoints", keep=1), build(device)
    saver, seconds = saving_into(store), []
    saver.reserve({"model": state})
    saver.wait()
    for step in (1, 2):
        for tensor in state.values():
            tensor.fill_(step)
        expected = {name: tensor.cpu() for name, tensor in build(device).items()}
        with on(stream):
            busy()
            for tensor, value in zip(state.values(), build(device).values(), strict=True):
                tensor.copy_(value)
        began = time.perf_counter()
        saver.save(Checkpoint({"model": state}, Header(Position(step=step))))
        seconds.append(time.perf_counter() - began)
        with on(stream):
            change(state)
        saver.finish()
        found = store.newest().tensors["model"]
        assert found.keys() == expected.keys()
        assert all(
            torch.equal(found[name].view(torch.int32), value.view(torch.int32)) for name, value in expected.items()
        )
    record(save_ms=round(1e3 * min(seconds), 2))


def test_cuda_graph_is_captured_during_transfer(tmp_path, device):
    """A capture fails if another thread calls CUDA."""
    if device == "cpu":
        pytest.skip("a CPU has no CUDA graphs")
    (tmp_path / "checkpoints").mkdir()
    store, state = CheckpointStore(tmp_path / "checkpoints", keep=1), build(device)
    saver, static = saving_into(store), torch.ones(1000, device=device)
    saver.save(Checkpoint({"model": state}, Header(Position(step=1))))
    static.add_(0)  # loads the kernel
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        count = 0
        while saver._thread.is_alive():
            static.add_(1)
            count += 1
        graph.capture_end()
    saver.finish()
    graph.replay()
    torch.cuda.synchronize()
    assert count
    assert static.sum().item() == (1 + count) * 1000
    assert store.newest().header.position.step == 1
