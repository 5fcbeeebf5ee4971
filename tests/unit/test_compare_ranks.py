"""Checksums by which ranks compare their replicas."""

import pytest
import torch

from slipway.dist import compare_ranks
from slipway.dist.compare_ranks import checksum


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_flipped_bit_changes_both_checksums(dtype):
    tensor = torch.arange(60).reshape(3, 4, 5).to(dtype)
    plain, weighted = checksum(tensor)
    flipped = tensor.clone()
    data = flipped.view(torch.uint8).view(-1)
    data[7] ^= 1
    other_plain, other_weighted = checksum(flipped)
    assert plain != other_plain
    assert weighted != other_weighted


def test_swapped_values_change_checksum():
    assert checksum(torch.tensor([1.0, 2.0])) != checksum(torch.tensor([2.0, 1.0]))


def test_checksum_does_not_depend_on_chunks_or_memory_layout(monkeypatch):
    tensor = torch.randn(7, 11, generator=torch.Generator().manual_seed(1))
    whole = checksum(tensor)
    assert checksum(tensor.t().contiguous().t()) == whole
    monkeypatch.setattr(compare_ranks, "CHUNK", 5)
    assert checksum(tensor) == whole


@pytest.mark.parametrize("tensor", [torch.tensor(3.0), torch.empty(0), torch.empty(2, 0)])
def test_checksum_of_scalar_and_empty_tensors(tensor):
    assert len(checksum(tensor)) == 2
