"""Background saving: from a snapshot, one at a time, with failures reported."""

import errno
import os

import pytest
import torch
from safetensors.torch import load_file

from messages import assert_warning, refused
from savers import saving_into
from slipway.base.errors import NotSavedError
from slipway.checkpoint.format import Checkpoint, read_checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.store import CheckpointStore
from support import file_size_limit


def checkpoint_of(step):
    """Return a 400 KB checkpoint filled with its step."""
    return Checkpoint({"model": {"w": torch.full((100_000,), float(step))}}, Header(Position(step=step)))


def require_equal(found, expected):
    assert found.header == expected.header
    assert torch.equal(found.tensors["model"]["w"], expected.tensors["model"]["w"])


@pytest.fixture
def store(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return CheckpointStore(tmp_path / "checkpoints", keep=3)


@pytest.fixture
def saver(store):
    return saving_into(store)


def test_changes_after_save_call_do_not_reach_file(store, saver):
    live = checkpoint_of(1)
    saver.save(live)
    live.tensors["model"]["w"].fill_(0)
    saver.finish()
    require_equal(store.newest(), checkpoint_of(1))


def test_repeated_saves_reuse_buffers_correctly(store, saver):
    for step in (1, 2, 3):
        saver.save(checkpoint_of(step))
    saver.finish()
    for step in (1, 2, 3):
        require_equal(read_checkpoint(store.path / f"step_{step:08d}"), checkpoint_of(step))


def test_noncontiguous_tensors_are_saved_by_value(store, saver):
    images = torch.arange(120.0).view(2, 3, 4, 5)
    tensors = {"model": {"nhwc": images.to(memory_format=torch.channels_last), "turned": images.flatten(1).t()}}
    saver.save(Checkpoint(tensors, Header(Position(step=1))))
    saver.finish()
    found = load_file(store.path / "latest" / "model.safetensors")
    assert torch.equal(found["nhwc"], images)
    assert torch.equal(found["turned"], images.flatten(1).t())


def test_changed_tensor_shape_or_dtype_gets_new_buffer(store, saver):
    for step, tensor in enumerate([torch.ones(3), torch.full((1,), 2.0), torch.full((1,), 1e300, dtype=torch.float64)]):
        saver.save(Checkpoint({"model": {"w": tensor}}, Header(Position(step=step))))
        saver.finish()
        found = load_file(store.path / "latest" / "model.safetensors")["w"]
        assert torch.equal(found, tensor)
        assert found.dtype == tensor.dtype


def test_full_disk_raises_at_finish_and_keeps_previous_checkpoint(store, saver, caplog):
    saver.save(checkpoint_of(1))
    saver.finish()
    with file_size_limit(20_000):
        saver.save(checkpoint_of(2))
        with refused("not-saved", os.strerror(errno.EFBIG), "step_00000001", code=1):
            saver.finish()
    assert_warning(caplog.text, "checkpoint-not-written", 2, os.strerror(errno.EFBIG))
    require_equal(store.newest(), checkpoint_of(1))


def test_successful_save_clears_earlier_failure(store, saver):
    store.path.rmdir()
    saver.save(checkpoint_of(1))
    with pytest.raises(NotSavedError):
        saver.finish()
    store.path.mkdir()
    saver.save(checkpoint_of(2))
    saver.finish()
    require_equal(store.newest(), checkpoint_of(2))


def test_first_save_uses_reserved_buffers(store, saver):
    live = checkpoint_of(1)
    saver.reserve(live.tensors)
    saver.wait()
    buffers = {name: buffer.data_ptr() for name, buffer in saver._buffers.named.items()}
    assert len(buffers) == 1
    saver.save(live)
    saver.finish()
    assert {name: buffer.data_ptr() for name, buffer in saver._buffers.named.items()} == buffers
    require_equal(store.newest(), checkpoint_of(1))
    assert torch.equal(live.tensors["model"]["w"], checkpoint_of(1).tensors["model"]["w"])


def test_save_waits_for_reserved_buffers(store, saver):
    saver.reserve(checkpoint_of(1).tensors)
    saver.save(checkpoint_of(1))
    saver.finish()
    require_equal(store.newest(), checkpoint_of(1))
