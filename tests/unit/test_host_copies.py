"""Host copies of a checkpoint: their values, and their order on a model of a GPU's streams.

The model runs operations of a stream only when something waits for them, as late as CUDA could. tests/gpu/test_saves.py
tests the same on a GPU.
"""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from messages import assert_warning
from savers import saving_into
from slipway.base.errors import NotSavedError
from slipway.checkpoint import host_copies
from slipway.checkpoint.format import Checkpoint, read_checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.host_copies import HostCopies
from slipway.checkpoint.store import CheckpointStore
from slipway.checkpoint.values import obstacle

ONE_OF_EACH = {
    "float32": torch.arange(6.0).view(2, 3),
    "bfloat16": torch.arange(5, dtype=torch.bfloat16),
    "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
    "float8": torch.arange(3.0).to(torch.float8_e4m3fn),
    "bool": torch.tensor([True, False, True]),
    "complex64": torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negative": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "complex128": torch.tensor([1 + 2j], dtype=torch.complex128),
    "a scalar": torch.tensor(7, dtype=torch.int64),
    "empty": torch.zeros(0, 3),
    "another empty": torch.zeros(2, 0),
    "turned": torch.arange(6.0).view(2, 3).t(),
    "every second": torch.arange(9.0)[::2],
    "nan": torch.tensor([float("nan"), -0.0]),
}


class Stream:
    """Operations in order, of which the first ``done`` have run; ``failing`` is the number of one that fails."""

    def __init__(self, failing):
        self.operations, self.done, self.failing = [], 0, failing

    def run(self, count):
        while self.done < count:
            if self.done == self.failing:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            self.operations[self.done]()
            self.done += 1

    def record_event(self):
        count = len(self.operations)
        return SimpleNamespace(synchronize=lambda: self.run(count))


class Streams(TorchDispatchMode):
    """A model of torch.cuda for tensors on the CPU: copies within ``stream`` run when something waits for them."""

    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self):
        super().__init__()
        self.free, self.blocks, self.failing, self.current, self.all, self.synchronized = 1 << 40, 99, None, None, [], 0

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        kwargs = {**(kwargs or {})}
        kwargs.pop("pin_memory", None)
        if self.current and func in (torch.ops.aten.copy_.default, torch.ops.aten._foreach_copy_.default):
            self.current.operations.append(lambda: func(*args, **kwargs))
            return args[0] if func is torch.ops.aten.copy_.default else None
        if self.current and func is torch.ops.aten.empty_like.default:
            self.blocks -= 1
            if self.blocks < 0:
                raise self.OutOfMemoryError
        return func(*args, **kwargs)

    def Stream(self, _device):  # noqa: N802 -- as in torch.cuda
        self.all.append(Stream(self.failing))
        return self.all[-1]

    @contextlib.contextmanager
    def stream(self, stream):
        self.current = stream
        yield
        self.current = None

    def synchronize(self, _device=None):
        self.synchronized += 1
        for stream in self.all:
            stream.run(len(stream.operations))

    def mem_get_info(self, _device):
        return self.free, 1 << 40

    @property
    def pending(self):
        return sum(len(stream.operations) - stream.done for stream in self.all)


@pytest.fixture
def store(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return CheckpointStore(tmp_path / "checkpoints", keep=3)


@pytest.fixture
def streams(monkeypatch):
    found = Streams()
    monkeypatch.setattr(host_copies, "cuda", found)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    with found:
        yield found


SIZE = 1000 * 4 + 600 * 4 + 8


def filled(value):
    """Return tensors of both layouts and of two dtypes, filled with ``value``, of ``SIZE`` bytes."""
    turned = torch.full((30, 20), value).t()
    return {
        "model": {"w": torch.full((1000,), value), "turned": turned},
        "optimizer": {"s": torch.full((), int(value))},
    }


def save(saver, tensors, *, step):
    saver.save(Checkpoint(tensors, Header(Position(step=step))))


def pairs_of(tensors):
    return [(tensor, torch.empty(tensor.shape, dtype=tensor.dtype)) for tensor in tensors]


def change(tensors):
    for named in tensors.values():
        for tensor in named.values():
            tensor.fill_(-1)


def require_equal(found, expected):
    assert {file: set(named) for file, named in found.items()} == {file: set(named) for file, named in expected.items()}
    for file, named in expected.items():
        for name, tensor in named.items():
            assert found[file][name].dtype == tensor.dtype
            assert torch.equal(found[file][name], tensor), name


def bits(tensor):
    return tensor.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)


def require_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(bits(found[name]), bits(tensor)), name


def test_each_dtype_and_layout_on_cpu_is_saved_bit_by_bit(store):
    savable = {name: tensor for name, tensor in ONE_OF_EACH.items() if not obstacle(tensor)}
    assert len(ONE_OF_EACH) - len(savable) <= 1  # safetensors 0.8 does not store complex128
    saver = saving_into(store)
    save(saver, {"extra": savable}, step=1)
    saver.finish()
    require_same_bits(load_file(store.path / "latest" / "extra.safetensors"), savable)


@pytest.mark.parametrize("free", [1 << 40, 0])
def test_each_dtype_and_layout_on_gpu_is_copied_bit_by_bit(free, streams):
    streams.free = free
    pairs = pairs_of(ONE_OF_EACH.values())
    HostCopies().start(pairs)
    streams.synchronize()
    require_same_bits({name: buffer for name, (_, buffer) in zip(ONE_OF_EACH, pairs, strict=True)}, ONE_OF_EACH)


def test_buffers_are_reserved_at_once_and_reused(store, streams):
    saver, live = saving_into(store), filled(1.0)
    saver.reserve(live)
    reserved = dict(saver._buffers.named)
    assert len(reserved) == 3
    save(saver, live, step=1)
    streams.synchronize()
    saver.finish()
    assert all(buffer is reserved[place] for place, buffer in saver._buffers.named.items())


def test_training_changes_tensors_during_transfer(store, streams):
    saver = saving_into(store)
    for step in (1, 2):
        live = filled(float(step))
        save(saver, live, step=step)
        assert streams.synchronized == 2 * step - 1  # before the copies: all streams, whose changes they include
        assert streams.pending > 0
        change(live)
        assert not (store.path / f"step_{step:08d}").exists()
        streams.synchronize()
        saver.finish()
        require_equal(read_checkpoint(store.path / f"step_{step:08d}").tensors, filled(float(step)))


def test_mark_is_set_after_last_buffer_is_complete(streams):
    host = HostCopies()
    for value in (1.0, 2.0):
        pairs = pairs_of(tensor for named in filled(value).values() for tensor in named.values())
        [transfer], [stream] = host.start(pairs), streams.all
        stream.run(len(stream.operations) - 1)
        assert not transfer.mark.item()
        assert all(bool((buffer == value).all()) for _, buffer in pairs)
        streams.synchronize()
        assert transfer.mark.item()
        assert len(transfer.snapshot) == 3
        transfer.wait()
        assert not transfer.snapshot


@pytest.mark.parametrize(("free", "blocks", "pending"), [(2 * SIZE, 3, 4), (2 * SIZE - 1, 3, 0), (2 * SIZE, 2, 0)])
def test_without_room_for_snapshot_save_waits_for_transfer(free, blocks, pending, *, store, streams):
    streams.free, streams.blocks = free, blocks
    saver, live = saving_into(store), filled(1.0)
    save(saver, live, step=1)
    assert streams.pending == pending  # three transfers and the mark
    change(live)
    streams.synchronize()
    saver.finish()
    require_equal(store.newest().tensors, filled(1.0))


def test_failed_transfer_is_failed_save(store, streams, monkeypatch, caplog):
    monkeypatch.setattr(host_copies, "MAX_POLLS", 3)
    streams.failing = 3  # the first transfer: the snapshot takes three operations
    saver = saving_into(store)
    save(saver, filled(1.0), step=1)
    with pytest.raises(NotSavedError):
        saver.finish()
    assert_warning(caplog.text, "checkpoint-not-written", 1, "CUDA error")
    assert store.newest() is None
