"""Tensors of every dtype that a checkpoint can hold reach the other ranks bit by bit."""

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save

from ranks import on_ranks
from slipway.checkpoint import stateful
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position


def savable():
    """Return each dtype of torch that safetensors stores."""
    found = []
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}:
        try:
            save({"tensor": torch.empty(2, dtype=dtype)})
        except (KeyError, SafetensorError, NotImplementedError, RuntimeError, TypeError):
            continue
        found.append(dtype)
    return found


class Holder:
    state = None

    def load_state_dict(self, state_dict):
        self.state = state_dict


class OnlyCommon:
    """A rank whose library broadcasts only bytes."""

    def __init__(self, comm):
        self._comm, self.world, self.device = comm, comm.world, comm.device

    def broadcast(self, tensors):
        assert all(tensor.dtype in {torch.uint8, torch.int64} for tensor in tensors)
        self._comm.broadcast(tensors)


@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
def test_tensors_of_every_dtype_are_broadcast_bit_exactly(monkeypatch, chunk):
    monkeypatch.setattr(stateful, "CHUNK", chunk)  # so that tensors are split, or sent together
    bits = torch.randint(0, 256, (64 * 16,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    named = {}
    for dtype in savable():
        data = bits % 2 if dtype == torch.bool else bits
        named[f"{dtype}"] = data.view(dtype)
        named[f"{dtype} scalar"] = data.view(dtype)[0].clone()
        named[f"{dtype} empty"] = torch.empty(0, 3, dtype=dtype)
    named["strided"] = torch.arange(300.0).view(10, 30).t()
    named["special"] = torch.tensor([0x7FF8000000000001, 0x7FF0000000000001, -(2**63)]).view(torch.float64)
    found = Checkpoint({"part": named}, Header(Position()))
    assert {torch.uint16, torch.float8_e4m3fn, torch.bfloat16, torch.complex64, torch.bool} <= {*savable()}

    def receive(comm):
        holder = Holder()
        stateful.restore({"part": holder}, found if comm.world.is_root else None, OnlyCommon(comm))
        return holder.state

    for state in on_ranks(2, receive):
        assert state.keys() == named.keys()
        for name, tensor in named.items():
            got = state[name]
            assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
            assert torch.equal(stateful.as_bytes(got), stateful.as_bytes(tensor)), name
