"""The patterns that classify third-party errors, tested against the installed versions."""

import os
import re
import subprocess
import sys
from typing import Annotated, Literal

import msgspec
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from slipway.base import third_party_errors as errors

LOST = [
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1",
    "read [127.0.0.1]:1: Connection reset by peer",
    "Broken pipe",
    "remote process exited or there was a network error",
]
"""Errors of gloo, the system and NCCL. For real ones see tests/distributed/test_faults.py."""
OTHER = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
NO_MEMORY = RuntimeError("CUDA out of memory")


def test_batch_norm_error_for_one_sample_is_recognized():
    with pytest.raises(ValueError, match="1 value per channel") as error:
        nn.BatchNorm1d(3)(torch.zeros(1, 3))
    assert errors.too_few_for_batch_norm(error.value)
    with pytest.raises(ValueError, match="expected") as other:
        nn.BatchNorm1d(3)(torch.zeros(1, 3, 3, 3))
    assert not errors.too_few_for_batch_norm(other.value)


class HalfUsed(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, inputs):
        return self.used(inputs)


def test_ddp_unused_parameters_error_is_recognized(tmp_path):
    dist.init_process_group("gloo", init_method=(tmp_path / "store").as_uri(), rank=0, world_size=1)
    try:
        model = DistributedDataParallel(HalfUsed())
        model(torch.zeros(1, 1)).sum().backward()
        with pytest.raises(RuntimeError, match="unused parameter detection") as error:
            model(torch.zeros(1, 1))
        assert errors.unused_parameters(error.value)
    finally:
        dist.destroy_process_group()
    assert not errors.unused_parameters(OTHER)


def test_os_error_number_of_safetensors_is_parsed(tmp_path):
    with pytest.raises(Exception, match="os error") as error:
        save_file({"a": torch.zeros(1)}, tmp_path)
    assert errors.os_error_numbers(error.value) == [21]  # EISDIR
    assert errors.os_error_numbers(ValueError("no number")) == []


def test_torchvision_operator_mismatch_is_recognized():
    code = "import torch; torch.library.register_fake('torchvision::nms')(lambda *_: None)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
    assert errors.is_operator_mismatch(RuntimeError(said.strip().splitlines()[-1]))
    assert not errors.is_operator_mismatch(RuntimeError("operator of torchvision"))


class Inner(msgspec.Struct):
    count: int = 0
    shape: tuple[int, int] = (0, 0)
    color: str = ""


INNER = {
    "count": ("one", errors.InvalidValue("Expected `int`, got `str`", "inner", "count")),
    "shape": ([1, "x"], errors.InvalidValue("Expected `int`, got `str`", "inner", "shape[1]")),
}


@pytest.mark.parametrize("key", INNER)
def test_msgspec_validation_error_path_is_parsed(key):
    value, expected = INNER[key]
    outer = msgspec.defstruct("Outer", [("inner", Inner)])
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert({"inner": {key: value}}, outer)
    assert errors.invalid_value(error.value) == expected


@pytest.mark.parametrize(("text", "reason"), [("a` b", "a` b"), ("a\nb", "a\nb"), ("", "")])
def test_validation_error_without_path_is_reason_only(text, reason):
    assert errors.invalid_value(ValueError(text)) == (reason, "", "")


def test_invalid_choice_and_pattern_mismatch_are_recognized():
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert("teal", Literal["red", "blue"])
    assert errors.invalid_choice(str(error.value)) == "teal"
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert("teal", Annotated[str, msgspec.Meta(pattern="^red$")])
    assert errors.is_pattern_mismatch(str(error.value))
    with pytest.raises(msgspec.ValidationError) as error:
        msgspec.convert("teal", int)
    assert (errors.invalid_choice(str(error.value)), errors.is_pattern_mismatch(str(error.value))) == (None, False)


@pytest.mark.parametrize("text", LOST)
def test_lost_peer_errors_are_recognized(text):
    assert errors.lost_peer(RuntimeError(text))
    assert errors.lost_peer(type("HorovodInternalError", (RuntimeError,), {})(""))
    assert not errors.lost_peer(NO_MEMORY)


def test_lost_loader_worker_error_is_recognized():
    with pytest.raises(RuntimeError) as raised:
        list(DataLoader(range(100), num_workers=1, worker_init_fn=os._exit))
    assert re.fullmatch(r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly.*", errors.lost_worker(raised.value))
    assert errors.lost_worker(RuntimeError("another")) == ""
